/* `adaptdl tensorboard`: named log directories that jobs write to, below the state directory of
 * the local cluster, and TensorBoard on one of them. */
#include "commands.h"
#include "kube_submit.h"
#include "state.h"
#include "term.h"

#include "base/dirs.h"
#include "base/mem.h"
#include "jobspec/jobspec.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

int state_directory(const cluster *k, char **out)
{
    *out = NULL;
    if (!k->server.socket_path)
        return problem(k->cli->command->name, EXIT_USAGE,
                       "%s: this works with a cluster on this machine only", k->server.url);
    *out = adli_strdup(k->server.socket_path);
    if (!*out)
        return problem(k->cli->command->name, EXIT_REFUSED, "out of memory");
    char *slash = strrchr(*out, '/');
    slash[slash == *out] = '\0';
    return EXIT_DONE;
}

/* STATE/tensorboard, or STATE/tensorboard/NAME */
static int directory_of(const cluster *k, const char *name, char *out)
{
    char *state;
    if (name && !adli_name_valid(name))
        return usage_error(k->cli->command->name,
                           "TensorBoard \"%.80s\": a name consists of a-z, 0-9 and '-', at most 63 "
                           "characters",
                           name);
    int status = state_directory(k, &state);
    if (status == EXIT_DONE)
        snprintf(out, PATH_BYTES, "%.4000s/tensorboard%s%s", state, name ? "/" : "",
                 name ? name : "");
    free(state);
    return status;
}

int tensorboard_directory(const cluster *k, const char *name, char **out)
{
    char path[PATH_BYTES];
    *out = NULL;
    int status = directory_of(k, name, path);
    if (status != EXIT_DONE)
        return status;
    if (access(path, F_OK) != 0)
        return problem(k->cli->command->name, EXIT_ABSENT,
                       "there is no TensorBoard %s; create it with: adaptdl tensorboard create %s",
                       name, name);
    *out = adli_strdup(path);
    return *out ? EXIT_DONE : problem(k->cli->command->name, EXIT_REFUSED, "out of memory");
}

static int create(const cluster *k, const char *name)
{
    char path[PATH_BYTES];
    int status = directory_of(k, NULL, path);
    if (status == EXIT_DONE && mkdir(path, 0700) != 0 && errno == ENOENT)
        return problem("tensorboard", EXIT_NO_CLUSTER,
                       "%s: no such directory; start a cluster with: adaptdl up", path);
    if (status == EXIT_DONE)
        status = directory_of(k, name, path);
    if (status != EXIT_DONE)
        return status;
    if (mkdir(path, 0700) != 0)
        return problem("tensorboard", errno == EEXIST ? EXIT_REFUSED : EXIT_USAGE, "%s: %s",
                       errno == EEXIST ? name : path,
                       errno == EEXIST ? "there is a TensorBoard of that name already"
                                       : strerror(errno));
    printf("%s created; use it with: adaptdl submit --tensorboard %s\n", name, name);
    return EXIT_DONE;
}

static int list(const cluster *k)
{
    char path[PATH_BYTES];
    struct dirent **names = NULL;
    int status = directory_of(k, NULL, path);
    if (status != EXIT_DONE)
        return status;
    int count = scandir(path, &names, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        if (adli_name_valid(names[i]->d_name))
            printf("%s\n", names[i]->d_name);
        free(names[i]);
    }
    free(names);
    return EXIT_DONE;
}

static int delete_named(const cluster *k, const char *name)
{
    char *path;
    int status = tensorboard_directory(k, name, &path);
    if (status == EXIT_DONE && adli_dirs_remove(AT_FDCWD, path) != ADL_OK)
        status = report_error("tensorboard", EXIT_USAGE);
    if (status == EXIT_DONE)
        printf("%s deleted\n", name);
    free(path);
    return status;
}

static int proxy(const cluster *k, const char *name, int port)
{
    char *path, number[16];
    int status = tensorboard_directory(k, name, &path);
    if (status != EXIT_DONE)
        return status;
    snprintf(number, sizeof number, "%d", port);
    printf("Proxying to TensorBoard instance %s at http://localhost:%d\n", name, port);
    fflush(stdout);
    execlp("tensorboard", "tensorboard", "--logdir", path, "--port", number, "--host", "localhost",
           (char *)NULL);
    if (errno == ENOENT)
        status =
            problem("tensorboard", EXIT_PROBLEM,
                    "the program tensorboard is not installed; install it with: python3 -m pip "
                    "install tensorboard");
    else
        status = problem("tensorboard", EXIT_PROBLEM, "tensorboard: %s", strerror(errno));
    free(path);
    return status;
}

static int run_tensorboard(cli *c)
{
    int port = 6006, status;
    cluster k;
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        if (!cli_whole(c->value, 1, 65535, &port))
            return usage_error("tensorboard", "-p %s: must be from 1 to 65535", c->value);
    }
    const char *verb = cli_argument(c, 0), *name = cli_argument(c, 1);
    if (!verb)
        return usage_error("tensorboard", "create, delete, list or proxy?");
    bool listing = strcmp(verb, "list") == 0;
    if (cli_count(c) != (listing ? 1 : 2))
        return usage_error("tensorboard", listing ? "list takes no name" : "expected one name");
    if (strcmp(verb, "attach") == 0)
        verb = "proxy";
    bool known = listing || strcmp(verb, "create") == 0 || strcmp(verb, "delete") == 0 ||
                 strcmp(verb, "proxy") == 0;
    status = cluster_open(&k, c);
    if (status == EXIT_DONE && k.kube && known)
        status = kube_tensorboard(&k, verb, name, port);
    else if (status == EXIT_DONE && listing)
        status = list(&k);
    else if (status == EXIT_DONE && strcmp(verb, "create") == 0)
        status = create(&k, name);
    else if (status == EXIT_DONE && strcmp(verb, "delete") == 0)
        status = delete_named(&k, name);
    else if (status == EXIT_DONE && strcmp(verb, "proxy") == 0)
        status = proxy(&k, name, port);
    else if (status == EXIT_DONE)
        status = usage_error("tensorboard", "\"%s\": must be create, delete, list or proxy", verb);
    cluster_close(&k);
    return status;
}

static const cli_option tensorboard_options[] = {
    {'p', "port", "PORT", "of proxy (default 6006)", NULL},
    {0},
};

const cli_command command_tensorboard = {
    .name = "tensorboard",
    .summary = "TensorBoards that jobs can write to",
    .usage = "create|delete|proxy|attach NAME | list",
    .text =
        "Jobs submitted with --tensorboard NAME find in ADAPTDL_TENSORBOARD_LOGDIR a directory "
        "that "
        "belongs to that name. create makes it, delete removes it with all event files, list shows "
        "the names, and proxy (or attach) runs TensorBoard on it until CTRL-C. On Kubernetes "
        "create "
        "makes a Deployment (of $ADAPTDL_TENSORBOARD_IMAGE), a Service and a claim (ReadWriteMany, "
        "of "
        "$ADAPTDL_TENSORBOARD_STORAGE_CLASS), and proxy leads a port to it with kubectl.",
    .options = tensorboard_options,
    .examples = "adaptdl tensorboard create my-tensorboard\n"
                "adaptdl submit . --tensorboard my-tensorboard\n"
                "adaptdl tensorboard proxy my-tensorboard -p 8080",
    .arguments = "create delete list proxy attach",
    .flags = CLI_CLUSTER,
    .run = run_tensorboard,
};
