/* `adaptdl submit`: a directory with a job file, and perhaps a Dockerfile, becomes a job. */
#include "cluster.h"
#include "commands.h"
#include "kube_submit.h"
#include "logs.h"
#include "state.h"
#include "submit_job.h"
#include "wait.h"

#include "base/file.h"
#include "jobspec/jobspec.h"
#include "jobspec/quantity.h"
#include "term.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TENSORBOARD = 256,
    SIZE,
    CLASS,
    DRY_RUN,
    WAIT,
    FOLLOW,
    JOB_FILE,
    PROXY_PORT,
    IMAGE,
    NO_BUILD,
    SOURCE,
    NO_STORAGE,
    PATH_BYTES = 4096,
    WORDS_MAX = 1000,
    LARGEST = 3
};

typedef struct submission {
    const char *path, *job_file, *dockerfile, *tensorboard, *size, *class, *proxy_port;
    const char *image_name; /* of a container; on Kubernetes */
    bool no_build, source, no_storage;
    job_edits edits;
    bool dry_run, wait, follow;
    bool directory; /* path is one */
    bool written;   /* no job file: it is made for the command */
    char *words[WORDS_MAX], folder[PATH_BYTES];
    int word_count;
    char job_path[PATH_BYTES], docker_path[PATH_BYTES];
    bool has_dockerfile;
    char *logdir;
    adli_image *image;
    adli_buf job; /* what is sent */
    bool yaml;
} submission;

static void note(const char *line)
{
    fprintf(stderr, "adaptdl submit: note: ");
    term_line(stderr, line);
    fputc('\n', stderr);
}

/* A file that an option named: as it is, else inside the directory; or the usual name there. */
static int find_file(const submission *s, const char *option, const char *given, const char *usual,
                     char *out, bool *found)
{
    *found = true;
    if (given && strcmp(given, "-") == 0) {
        snprintf(out, PATH_BYTES, "-");
        return EXIT_DONE;
    }
    if (given) {
        snprintf(out, PATH_BYTES, "%s", given);
        if (access(out, F_OK) == 0)
            return EXIT_DONE;
        if (given[0] != '/')
            snprintf(out, PATH_BYTES, "%s/%s", s->path, given);
        if (access(out, F_OK) == 0)
            return EXIT_DONE;
        return problem("submit", EXIT_USAGE, "%s %s: %s", option, given, strerror(errno));
    }
    snprintf(out, PATH_BYTES, "%s/%s", s->path, usual);
    *found = access(out, F_OK) == 0;
    return EXIT_DONE;
}

/* The command is what follows "--", or a script; the files are those beside it. */
static int take_command(submission *s, const char *script)
{
    static char python[] = "python3";
    const char *slash = script ? strrchr(script, '/') : NULL;
    if (s->edits.argument_count + 2 >= WORDS_MAX)
        return usage_error("submit", "the command has more than %d words", WORDS_MAX - 3);
    if (script) {
        s->words[s->word_count++] = python;
        s->words[s->word_count++] = (char *)(slash ? slash + 1 : script);
    }
    for (int i = 0; i < s->edits.argument_count; i++)
        s->words[s->word_count++] = s->edits.arguments[i];
    s->edits.argument_count = 0;
    snprintf(s->folder, sizeof s->folder, "%.*s",
             !slash            ? 1
             : slash == script ? 1
                               : (int)(slash - script),
             slash ? script : ".");
    s->path = s->folder;
    s->directory = s->written = true;
    snprintf(s->job_path, sizeof s->job_path, "the command line");
    return s->dockerfile ? find_file(s, "-d", s->dockerfile, "", s->docker_path, &s->has_dockerfile)
                         : EXIT_DONE;
}

static bool is_script(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".py") == 0;
}

static int find_files(submission *s)
{
    struct stat seen;
    bool found;
    if (!s->path)
        return take_command(s, NULL);
    if (strcmp(s->path, "-") == 0) {
        snprintf(s->job_path, sizeof s->job_path, "-");
        return EXIT_DONE;
    }
    if (stat(s->path, &seen) != 0)
        return problem("submit", EXIT_USAGE, "%s: %s", s->path, strerror(errno));
    s->directory = S_ISDIR(seen.st_mode);
    if (!s->directory && is_script(s->path) && !s->job_file)
        return take_command(s, s->path);
    if (!s->directory) {
        if (s->job_file || s->dockerfile)
            return usage_error("submit", "-f and -d go with a directory, and %s is a file",
                               s->path);
        snprintf(s->job_path, sizeof s->job_path, "%s", s->path);
        return EXIT_DONE;
    }
    int status = find_file(s, "-f", s->job_file, "adaptdljob.yaml", s->job_path, &found);
    if (status == EXIT_DONE && !found)
        return problem("submit", EXIT_USAGE,
                       "%s: no such file; adaptdl init writes one, -f names another, and adaptdl "
                       "submit FILE.py or adaptdl submit -- COMMAND needs none",
                       s->job_path);
    if (status == EXIT_DONE)
        status =
            find_file(s, "-d", s->dockerfile, "Dockerfile", s->docker_path, &s->has_dockerfile);
    return status;
}

static int check_options(submission *s)
{
    int64_t bytes;
    if (s->edits.name && !adli_name_valid(s->edits.name))
        return usage_error("submit",
                           "-n %.80s: a name consists of a-z, 0-9 and '-', at most 63 characters",
                           s->edits.name);
    if (s->size && adli_resource_parse("memory", s->size, &bytes) != ADL_OK)
        return usage_error("submit", "--checkpoint-storage-size %s: expected a size such as 1Gi",
                           s->size);
    int port;
    if (s->proxy_port && !cli_whole(s->proxy_port, 1, 65535, &port))
        return usage_error("submit", "--proxy-port %s: must be from 1 to 65535", s->proxy_port);
    if (s->source && s->no_build)
        return usage_error("submit", "--source sends the files, --no-build does not: which?");
    return EXIT_DONE;
}

static void note_unused(const submission *s)
{
    if (s->proxy_port)
        note("--proxy-port does nothing on a local cluster: there is no registry of images");
    if (s->size || s->class)
        note("--checkpoint-storage-size and --checkpoint-storage-class do nothing on a local "
             "cluster");
    if (s->image_name || s->no_build || s->source || s->no_storage)
        note("--image, --no-build, --source and --no-storage do nothing on a local cluster: jobs "
             "run with what is installed on this machine");
}

/* The image and the job file, as they will be sent. */
static int prepare(submission *s, bool kubernetes)
{
    bool real = kubernetes && !s->source; /* an image is what its builder makes of the Dockerfile */
    adli_buf text;
    adli_buf_init(&text, ADLI_JOB_FILE_MAX);
    adl_status status = ADL_OK;
    if (s->written)
        put_job_text(&text, s->words, s->word_count, &s->edits.wishes, false);
    else
        status = adli_file_read(s->job_path, &text);
    if (status == ADL_OK)
        status = adli_buf_check(&text);
    if (status == ADL_OK && s->directory && (!real || s->has_dockerfile))
        status = adli_image_build(s->path, s->has_dockerfile ? s->docker_path : NULL, &s->image);
    if (status == ADL_OK && s->image) {
        const char *line;
        for (int i = 0; !kubernetes && (line = adli_image_note(s->image, i)); i++)
            note(line);
        if (kubernetes && s->source && s->has_dockerfile)
            note("--source: the image is used as it is; of the Dockerfile FROM, RUN and the like "
                 "are "
                 "ignored");
        s->edits.image = adli_image_get_config(s->image);
    }
    s->edits.tensorboard = s->logdir;
    if (status == ADL_OK)
        status =
            job_prepare(s->job_path, text.data, text.length, &s->edits, note, &s->job, &s->yaml);
    adli_buf_fini(&text);
    return status == ADL_OK ? EXIT_DONE : report_error("submit", EXIT_USAGE);
}

/* A file without a name. */
static int open_temporary(void)
{
    const char *directory = getenv("TMPDIR");
    char path[PATH_BYTES];
    if (!directory || !*directory)
        directory = "/tmp";
    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    snprintf(path, sizeof path, "%.4000s/adaptdl-submit-XXXXXX", directory);
    fd = mkstemp(path);
    if (fd >= 0)
        unlink(path);
    return fd;
}

/* The archive is too large: which files make it so? */
static void name_largest(const submission *s)
{
    char size[32], text[3 * PATH_BYTES];
    int chosen[LARGEST], count = adli_image_files(s->image), used = 0;
    *text = '\0';
    for (int n = 0; n < LARGEST; n++) {
        chosen[n] = -1;
        for (int i = 0; i < count; i++) {
            int64_t bytes = adli_image_size(s->image, i);
            bool again = false;
            for (int m = 0; m < n; m++)
                again |= chosen[m] == i;
            if (!again && bytes > 0 &&
                (chosen[n] < 0 || bytes > adli_image_size(s->image, chosen[n])))
                chosen[n] = i;
        }
        if (chosen[n] >= 0)
            used += snprintf(text + used, sizeof text - (size_t)used, "%s%.300s (%s)",
                             n ? ", " : "", adli_image_path(s->image, chosen[n]),
                             adli_resource_print("memory", adli_image_size(s->image, chosen[n]),
                                                 size, sizeof size));
    }
    char line[3 * PATH_BYTES + 400];
    snprintf(line, sizeof line,
             "%d files of %s together, the largest %s; name what the job does not need in "
             "%.200s/.dockerignore, or raise limits.maxUploadBytes",
             count, adli_resource_print("memory", adli_image_bytes(s->image), size, sizeof size),
             text, s->path);
    note(line);
}

static int send_archive(submission *s, cluster *k, const char *path, json_t **answer)
{
    int fd = open_temporary(), status;
    if (fd < 0)
        return problem("submit", EXIT_USAGE, "a temporary file: %s", strerror(errno));
    if (adli_image_pack(s->image, s->job.data, s->job.length, s->yaml, fd) != ADL_OK) {
        status = report_error("submit", EXIT_USAGE);
    } else {
        adli_stream_request request = {.method = "POST",
                                       .path = path,
                                       .body_fd = fd,
                                       .body_bytes = lseek(fd, 0, SEEK_END),
                                       .content_type = "application/x-tar"};
        status = cluster_request(k, &request, 0, answer);
        if (status != EXIT_DONE && k->code == 413)
            name_largest(s);
    }
    close(fd);
    return status;
}

static int make_on_kubernetes(submission *s, cluster *k, const kube_outfit *outfit, json_t **answer)
{
    adli_doc doc;
    if (adli_doc_parse(s->job_path, s->job.data, s->job.length,
                       s->yaml ? ADLI_DOC_YAML : ADLI_DOC_JSON, &doc) != ADL_OK)
        return report_error("submit", EXIT_USAGE);
    json_t *job = json_deep_copy(doc.root);
    adli_doc_fini(&doc);
    int status = job ? kube_submit(k, job, outfit, s->dry_run, answer)
                     : problem("submit", EXIT_REFUSED, "out of memory");
    json_decref(job);
    return status;
}

/* On Kubernetes files are in an image: one that is there, one that is built now, or a stock one beside which they are
 * sent. */
static int send_to_kubernetes(submission *s, cluster *k, json_t **answer)
{
    char built[IMAGE_NAME];
    kube_registry registry = {0};
    const char *secret = getenv("ADAPTDL_SUBMIT_REPO_CREDS");
    kube_outfit outfit = {.image = s->image_name,
                          .tensorboard = s->tensorboard,
                          .size = s->size,
                          .class = s->class,
                          .no_storage = s->no_storage};
    int status = EXIT_DONE;
    if (s->source)
        outfit.files = s->image;
    else if (s->has_dockerfile && !s->no_build && !s->image_name && !s->dry_run) {
        status = kube_build(k, s->path, s->docker_path, &registry, built);
        outfit.image = built;
        outfit.pull_config = registry.config;
        outfit.pull_secret = *registry.host ? KUBE_REGISTRY : secret && *secret ? secret : NULL;
    } else if (s->written && !s->no_build)
        return problem("submit", EXIT_USAGE,
                       "on Kubernetes the files of this directory are sent with --source (and "
                       "--image), or are in the image (--no-build --image)");
    if (status == EXIT_DONE)
        status = make_on_kubernetes(s, k, &outfit, answer);
    kube_registry_close(&registry);
    return status;
}

static int send_job(submission *s, cluster *k, json_t **answer)
{
    const char *path = s->dry_run ? "/api/v1/jobs?dryRun=1" : "/api/v1/jobs";
    if (k->kube)
        return send_to_kubernetes(s, k, answer);
    note_unused(s);
    if (s->image)
        return send_archive(s, k, path, answer);
    adli_stream_request request = {.method = "POST",
                                   .path = path,
                                   .body = s->job.data,
                                   .body_length = s->job.length,
                                   .content_type =
                                       s->yaml ? "application/yaml" : "application/json",
                                   .timeout_ms = 60000};
    return cluster_request(k, &request, 0, answer);
}

static int stay(const submission *s, cluster *k, const json_t *job)
{
    static const logs_options follow = {.follow = true, .tail = -1};
    job_name name;
    int status = EXIT_DONE;
    snprintf(name.ns, sizeof name.ns, "%s", text_of(job, "namespace", ""));
    snprintf(name.name, sizeof name.name, "%s", text_of(job, "name", ""));
    fflush(stdout);
    catch_interrupts();
    if (s->follow)
        status = logs_print(k, &name, &follow);
    if (status == EXIT_DONE)
        status = wait_for(k, &name, WAIT_SUCCEEDED, INFINITY, s->follow);
    if (status == EXIT_INTERRUPTED)
        fprintf(stderr,
                "adaptdl submit: job %s/%s goes on; adaptdl logs %s shows more, adaptdl cancel %s "
                "ends it\n",
                name.ns, name.name, name.name, name.name);
    return status;
}

/* What cannot start as things are is told at once, not found out later. */
static void tell_unschedulable(const json_t *job)
{
    char line[500];
    if (strcmp(text_of(job, "reason", ""), "Unschedulable") != 0)
        return;
    snprintf(line, sizeof line, "%.80s waits: %.300s", text_of(job, "name", "?"),
             text_of(job, "message", ""));
    note(line);
}

static int submit(submission *s, cli *c)
{
    cluster k;
    json_t *answer = NULL;
    int status = cluster_open(&k, c);
    if (status == EXIT_DONE && s->tensorboard && !k.kube)
        status = tensorboard_directory(&k, s->tensorboard, &s->logdir);
    if (status == EXIT_DONE)
        status = prepare(s, k.kube != NULL);
    if (status == EXIT_DONE)
        status = send_job(s, &k, &answer);
    if (status == EXIT_DONE) {
        if (c->format == FORMAT_JSON || c->format == FORMAT_YAML) {
            status = print_value(c, answer);
        } else {
            term_line(stdout, text_of(answer, "name", "?"));
            putchar('\n');
        }
    }
    if (status == EXIT_DONE)
        tell_unschedulable(answer);
    if (status == EXIT_DONE && !s->dry_run && (s->wait || s->follow))
        status = stay(s, &k, answer);
    json_decref(answer);
    cluster_close(&k);
    return status;
}

static int take_option(cli *c, int option, submission *s)
{
    switch (option) {
    case 'f':
    case JOB_FILE:
        s->job_file = c->value;
        break;
    case 'd':
        s->dockerfile = c->value;
        break;
    case 'n':
        s->edits.name = c->value;
        break;
    case TENSORBOARD:
        s->tensorboard = c->value;
        break;
    case SIZE:
        s->size = c->value;
        break;
    case CLASS:
        s->class = c->value;
        break;
    case PROXY_PORT:
        s->proxy_port = c->value;
        break;
    case IMAGE:
        s->image_name = c->value;
        break;
    case NO_BUILD:
        s->no_build = true;
        break;
    case SOURCE:
        s->source = true;
        break;
    case NO_STORAGE:
        s->no_storage = true;
        break;
    case DRY_RUN:
        s->dry_run = true;
        break;
    case WAIT:
        s->wait = true;
        break;
    case FOLLOW:
        s->follow = true;
        break;
    default:
        return take_wish(c, option, &s->edits.wishes);
    }
    return EXIT_DONE;
}

static int run_submit(cli *c)
{
    submission s = {0};
    for (int i = 1; i < c->argc; i++) { /* what follows "--" is the program's */
        if (strcmp(c->argv[i], "--") == 0) {
            s.edits.arguments = c->argv + i + 1;
            s.edits.argument_count = c->argc - i - 1;
            c->argc = i;
        }
    }
    for (int option; (option = cli_next(c)) != CLI_END;) {
        if (option < 0)
            return cli_result(option);
        int taken = take_option(c, option, &s);
        if (taken != EXIT_DONE)
            return taken;
    }
    bool command = cli_count(c) == 0 && s.edits.argument_count > 0 && !s.job_file;
    bool alone = cli_count(c) == 0 && s.job_file; /* a job file, and nothing else */
    if (cli_count(c) != 1 && !alone && !command)
        return usage_error("submit",
                           cli_count(c) == 0
                               ? "which directory or job file? Or: adaptdl submit FILE.py, "
                                 "adaptdl submit -- COMMAND"
                               : "one directory or job file; arguments of the "
                                 "program come after --");
    s.path = alone ? s.job_file : command ? NULL : cli_argument(c, 0);
    if (alone)
        s.job_file = NULL;
    s.edits.ns = c->ns;
    if (s.path && strlen(s.path) > PATH_BYTES - 100)
        return usage_error("submit", "the path is too long");
    adli_buf_init(&s.job, ADLI_IMAGE_JOB_MAX_BYTES);
    int status = check_options(&s);
    if (status == EXIT_DONE)
        status = find_files(&s);
    if (status == EXIT_DONE)
        status = submit(&s, c);
    adli_image_free(s.image);
    adli_buf_fini(&s.job);
    free(s.logdir);
    return status;
}

static const cli_option submit_options[] = {
    {'f', "job-file", "FILE", "the job file (default: DIR/adaptdljob.yaml); - is standard input",
     COMPLETE_FILE},
    {JOB_FILE, "jobfile", "FILE", "the same", COMPLETE_FILE},
    {'d', "dockerfile", "FILE", "the Dockerfile (default: DIR/Dockerfile, if there is one)",
     COMPLETE_FILE},
    JOB_WISH_OPTIONS,
    {'n', "name", "NAME", "name of the job (default: as in the job file)", NULL},
    {TENSORBOARD, "tensorboard", "NAME",
     "write event files to this TensorBoard (see: adaptdl help tensorboard)", NULL},
    {SIZE, "checkpoint-storage-size", "SIZE",
     "size of the volume for checkpoints, on clusters that have volumes", NULL},
    {CLASS, "checkpoint-storage-class", "CLASS", "its storage class", NULL},
    {PROXY_PORT, "proxy-port", "PORT",
     "of a proxy to the registry of images, on clusters that have one", NULL},
    {IMAGE, "image", "IMAGE", "on Kubernetes: run the job in this image, and build none", NULL},
    {NO_BUILD, "no-build", NULL, "on Kubernetes: build no image, whatever Dockerfile there is",
     NULL},
    {SOURCE, "source", NULL,
     "on Kubernetes: send the files beside the job (in a ConfigMap, up to 700 kB) into a stock "
     "image, which needs no docker here; of a Dockerfile COPY, ENV, WORKDIR and CMD count",
     NULL},
    {NO_STORAGE, "no-storage", NULL,
     "on Kubernetes: make no claim for checkpoints and shared files", NULL},
    {DRY_RUN, "dry-run", NULL, "check everything, create nothing", NULL},
    {WAIT, "wait", NULL, "until the job has ended; exit status 1 when it failed", NULL},
    {FOLLOW, "follow", NULL, "show its output, until it has ended; exit status as with --wait",
     NULL},
    {0},
};

const cli_command command_submit = {
    .name = "submit",
    .summary = "submit a job: a directory with a job file, a script, or a command",
    .usage = "[OPTIONS] DIR|FILE|FILE.py [-- ARGUMENTS] | [OPTIONS] -- COMMAND",
    .text =
        "Submits the job that DIR/adaptdljob.yaml describes and prints its name. The files that "
        "DIR/Dockerfile copies (COPY, ADD) are sent with it, and ENV, WORKDIR, ENTRYPOINT and CMD "
        "are "
        "used where the job file says nothing. FROM and RUN are ignored: a local cluster runs the "
        "job "
        "with what is installed on this machine. Without a Dockerfile all of DIR is sent, as "
        "/workspace, where the job starts; .dockerignore is honoured in both cases.\n\n"
        "Paths that begin with /adaptdl/checkpoint, /adaptdl/share or the image's own files are "
        "mapped for each job.\n\n"
        "Without a job file: FILE.py is run by python3, with the files of its directory; -- "
        "COMMAND is "
        "run with the files of this directory. The options say what a replica needs and how many "
        "there "
        "may be; given with a job file they go before what it says.\n\n"
        "On Kubernetes the job runs in an image: with a Dockerfile one is built (by docker, podman "
        "or "
        "buildah, or $ADAPTDL_BUILDER, with the options $ADAPTDL_BUILD_ARGS), pushed to "
        "$ADAPTDL_SUBMIT_REPO, else to the cluster's "
        "registry, and pinned by its digest; "
        "$ADAPTDL_SUBMIT_REPO_CREDS is the pull secret. --image names one that is there. A claim "
        "(ReadWriteMany) that goes with the job is mounted at /adaptdl/checkpoint and "
        "/adaptdl/share.\n\n"
        "FILE is a job file alone, without files of its own; - is standard input. ARGUMENTS after "
        "-- replace the args "
        "of "
        "the container.",
    .options = submit_options,
    .examples = "adaptdl submit hello_world\n"
                "adaptdl submit train.py\n"
                "adaptdl submit --gpus 1 --max-replicas 4 -- python3 train.py --epochs 10\n"
                "adaptdl submit . -f tutorial/adaptdljob.yaml -d tutorial/Dockerfile\n"
                "adaptdl submit --follow mnist -- --epochs 14",
    .arguments = COMPLETE_FILE,
    .flags = CLI_CLUSTER | CLI_OUTPUT,
    .run = run_submit,
};
