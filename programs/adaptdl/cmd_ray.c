/* `adaptdl ray`: jobs on a Ray cluster. What they need of Ray is Python, and in a package of its own; this hands
 * over to its command. */
#include "commands.h"
#include "term.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static int run_ray(cli *c)
{
    for (int option; (option = cli_next(c)) != CLI_END;)
        if (option < 0)
            return cli_result(option);
    if (cli_count(c) < 1)
        return usage_error("ray", "expected submit, attach, stop, status, list or trials");
    static char program[] = "adaptdl-ray";
    char **arguments = c->argv + c->first - 1;
    arguments[0] = program;
    execvp(program, arguments);
    if (errno == ENOENT)
        return problem("ray", EXIT_PROBLEM,
                       "adaptdl-ray is not installed; it comes with: pip install adaptdl-ray");
    return problem("ray", EXIT_PROBLEM, "adaptdl-ray: %s", strerror(errno));
}

const cli_command command_ray = {
    .name = "ray",
    .summary = "run one elastic job on a Ray cluster",
    .usage = "submit|attach|stop|status|list|trials [OPTIONS]",
    .text =
        "Runs a training program on the machines of a Ray cluster, on as many as train it well, "
        "and shows its output; the other commands find such a job again, by its name. Hands over "
        "to adaptdl-ray, the command of the Python package of that name; \"adaptdl ray submit "
        "--help\" shows its options.",
    .exits = "of submit and attach: the program's; 1 when it could not be run.",
    .examples = "adaptdl ray submit -u ray://HEAD:10001 -f code.py -m 8 --gpus 1 -- --epochs 90",
    .arguments = "submit attach stop status list trials",
    .flags = CLI_FIRST,
    .run = run_ray,
};
