/* `adaptdl init`: a job file to go on from. */
#include "commands.h"
#include "job_text.h"

#include "base/file.h"
#include "jobspec/jobspec.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FORCE = 256, PATH_BYTES = 4096 };

/* The program in a directory, if there is one that must be it: train.py, main.py, or the only script. */
static bool find_script(const char *directory, char out[256])
{
    DIR *files = opendir(directory);
    int found = 0, best = 0;
    for (struct dirent *entry; files && (entry = readdir(files));) {
        size_t length = strlen(entry->d_name);
        if (length < 4 || length > 255 || strcmp(entry->d_name + length - 3, ".py") != 0)
            continue;
        int worth = strcmp(entry->d_name, "train.py") == 0  ? 3
                    : strcmp(entry->d_name, "main.py") == 0 ? 2
                                                            : 1;
        found += worth == 1;
        if (worth > best)
            snprintf(out, 256, "%s", entry->d_name);
        best = worth > best ? worth : best;
    }
    if (files)
        closedir(files);
    return best > 1 || found == 1;
}

static int write_job(const char *path, char *const *words, int count, const job_wishes *wishes)
{
    adli_buf text;
    adli_jobfile spec = {0};
    adli_buf_init(&text, ADLI_JOB_FILE_MAX);
    put_job_text(&text, words, count, wishes, true);
    adl_status status = adli_buf_check(&text);
    if (status == ADL_OK) /* what it says must hold together */
        status = adli_jobfile_parse(path, text.data, text.length, ADLI_DOC_YAML, &spec);
    if (status == ADL_OK)
        status = adli_file_write(path, text.data, text.length);
    adli_jobfile_fini(&spec);
    adli_buf_fini(&text);
    if (status != ADL_OK)
        return report_error("init", EXIT_USAGE);
    printf("%s\n", path);
    return EXIT_DONE;
}

static int run_init(cli *c)
{
    static char python[] = "python3";
    char script[256], path[PATH_BYTES], *found[] = {python, script};
    char **words = NULL;
    int count = 0;
    bool force = false;
    job_wishes wishes = {0};
    for (int i = 1; i < c->argc && !words; i++) { /* what follows "--" is the command */
        if (strcmp(c->argv[i], "--") == 0) {
            words = c->argv + i + 1;
            count = c->argc - i - 1;
            c->argc = i;
        }
    }
    for (int option; (option = cli_next(c)) != CLI_END;) {
        int status = option < 0 ? cli_result(option) : EXIT_DONE;
        if (option == FORCE)
            force = true;
        else if (option > 0)
            status = take_wish(c, option, &wishes);
        if (option < 0 || status != EXIT_DONE)
            return status;
    }
    const char *directory = cli_argument(c, 0) ? cli_argument(c, 0) : ".";
    if (cli_count(c) > 1)
        return usage_error("init", "one directory; the command comes after --");
    if (snprintf(path, sizeof path, "%s/adaptdljob.yaml", directory) >= (int)sizeof path)
        return usage_error("init", "the path is too long");
    if (count == 0 && !find_script(directory, script))
        return usage_error("init",
                           "%s has no train.py, main.py or single script: say what to run, as "
                           "in: adaptdl init -- python3 FILE.py",
                           directory);
    if (!force && access(path, F_OK) == 0)
        return problem("init", EXIT_PROBLEM, "%s is there already; --force replaces it", path);
    return write_job(path, count ? words : found, count ? count : 2, &wishes);
}

static const cli_option init_options[] = {
    JOB_WISH_OPTIONS,
    {FORCE, "force", NULL, "replace a file that is there", NULL},
    {0},
};

const cli_command command_init = {
    .name = "init",
    .summary = "write a job file to go on from",
    .usage = "[OPTIONS] [DIR] [-- COMMAND]",
    .text = "Writes DIR/adaptdljob.yaml for COMMAND, or for DIR/train.py, DIR/main.py or the only "
            "script "
            "there, and prints its name. adaptdl submit DIR submits it.",
    .options = init_options,
    .examples =
        "adaptdl init\nadaptdl init --gpus 1 --max-replicas 4 -- python3 train.py --epochs 10",
    .arguments = COMPLETE_DIR,
    .run = run_init,
};
