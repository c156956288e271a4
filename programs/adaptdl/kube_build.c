/* Images: built and pushed by whichever program is there, and then known by their digest, so that what runs is what was
 * built. */
#include "kube_submit.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, EXTRA = 32 };

extern char **environ;

static bool is_there(const char *program)
{
    const char *path = getenv("PATH");
    char file[PATH_BYTES];
    while (path && *path) {
        size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (access(file, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

static const char *find_builder(void)
{
    static const char *const known[] = {"docker", "podman", "buildah"};
    const char *given = getenv("ADAPTDL_BUILDER");
    if (given && *given)
        return given;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (is_there(known[i]))
            return known[i];
    return NULL;
}

/* Its output goes to out, or to standard error. */
static int run(const char *const *words, int out)
{
    posix_spawn_file_actions_t files;
    pid_t id;
    int status = 0;
    posix_spawn_file_actions_init(&files);
    int why = posix_spawn_file_actions_adddup2(&files, out, 1);
    if (why == 0)
        why = posix_spawnp(&id, words[0], &files, NULL, (char *const *)(uintptr_t)words, environ);
    posix_spawn_file_actions_destroy(&files);
    if (why)
        return problem("submit", EXIT_PROBLEM, "%s: %s", words[0], strerror(why));
    while (waitpid(id, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return EXIT_DONE;
    return problem("submit", EXIT_PROBLEM, "%s %s failed (%s %d)", words[0], words[1],
                   WIFEXITED(status) ? "exit status" : "signal",
                   WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static bool is_docker(const char *builder)
{
    const char *slash = strrchr(builder, '/');
    return strcmp(slash ? slash + 1 : builder, "docker") == 0;
}

/* Builds with the options of ADAPTDL_BUILD_ARGS, words between blanks. */
static int build(const char *builder, const char *tag, const char *dockerfile,
                 const char *directory)
{
    const char *const ends[] = {"--tag", tag, "--file", dockerfile, directory, NULL};
    const char *words[2 + EXTRA + sizeof ends / sizeof ends[0]] = {builder, "build"};
    const char *given = getenv("ADAPTDL_BUILD_ARGS");
    char text[PATH_BYTES], *rest = NULL;
    int count = 2;
    if (given && strlen(given) >= sizeof text)
        return problem("submit", EXIT_USAGE, "ADAPTDL_BUILD_ARGS is too long");
    snprintf(text, sizeof text, "%s", given ? given : "");
    for (char *word = strtok_r(text, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
        if (count == 2 + EXTRA)
            return problem("submit", EXIT_USAGE, "ADAPTDL_BUILD_ARGS: more than %d words", EXTRA);
        words[count++] = word;
    }
    memcpy(&words[count], ends, sizeof ends);
    return run(words, STDERR_FILENO);
}

/* A name of its own for each build: two at a time must not push over each other. */
static void put_tag(char *out, size_t size, const char *repository)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(out, size, "%.500s:%lld-%ld", repository, (long long)now.tv_sec, (long)getpid());
}

/* docker has the digest in what it knows of the image, the others write it to a file. plain: without TLS, which docker
 * thinks of localhost by itself. */
static int push(const char *builder, const char *tag, bool plain, int digest_fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", digest_fd);
    if (is_docker(builder)) {
        const char *const words[] = {builder, "push", tag, NULL};
        const char *const asks[] = {
            builder, "image", "inspect", "--format", "{{index .RepoDigests 0}}", tag, NULL};
        int status = run(words, STDERR_FILENO);
        return status == EXIT_DONE ? run(asks, digest_fd) : status;
    }
    const char *const words[] = {builder, "push", "--digestfile", path, tag, NULL};
    const char *const plainly[] = {builder, "push", "--digestfile", path, "--tls-verify=false",
                                   tag,     NULL};
    return run(plain ? plainly : words, STDERR_FILENO);
}

/* "sha256:..." is in the text, whatever is before and after it. */
static int read_digest(int fd, const char *repository, char out[IMAGE_NAME])
{
    char text[1024];
    lseek(fd, 0, SEEK_SET);
    ssize_t got = read(fd, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    const char *digest = strstr(text, "sha256:");
    size_t length = digest ? 7 + strspn(digest + 7, "0123456789abcdef") : 0;
    if (length != 71)
        return problem("submit", EXIT_PROBLEM, "the image was pushed, but its digest is not known");
    snprintf(out, IMAGE_NAME, "%.500s@%.71s", repository, digest);
    return EXIT_DONE;
}

/* Pushes what was built, and reads what it is called now. */
static int push_and_pin(cluster *k, const char *builder, const char *tag, const char *repository,
                        kube_registry *registry, char out[IMAGE_NAME])
{
    char path[] = "/tmp/adaptdl-digest-XXXXXX";
    int status = *registry->host ? kube_registry_open(k, registry) : EXIT_DONE;
    int fd = status == EXIT_DONE ? mkstemp(path) : -1; /* not O_CLOEXEC: who pushes writes to it */
    if (status != EXIT_DONE)
        return status;
    if (fd < 0)
        return problem("submit", EXIT_USAGE, "%s: %s", path, strerror(errno));
    unlink(path);
    status = push(builder, tag, *registry->host, fd);
    if (status == EXIT_DONE)
        status = read_digest(fd, repository, out);
    close(fd);
    return status;
}

int kube_build(cluster *k, const char *directory, const char *dockerfile, kube_registry *registry,
               char out[IMAGE_NAME])
{
    const char *builder = find_builder(), *given = getenv("ADAPTDL_SUBMIT_REPO");
    char tag[IMAGE_NAME], repository[IMAGE_NAME];
    *registry = (kube_registry){0};
    int status = given && *given ? EXIT_DONE : kube_registry_find(k, registry);
    if (status != EXIT_DONE)
        return status;
    if (!*registry->host && (!given || !*given))
        return problem("submit", EXIT_USAGE,
                       "there is a Dockerfile, and no registry in the cluster: set "
                       "ADAPTDL_SUBMIT_REPO to where its image is to be pushed, or use --image "
                       "with one that is there, or --source with a stock image");
    if (given && (strlen(given) > 400 || strspn(given, " \t-") > 0))
        return problem("submit", EXIT_USAGE, "ADAPTDL_SUBMIT_REPO=%.100s: not a repository", given);
    if (!builder)
        return problem("submit", EXIT_PROBLEM,
                       "neither docker nor podman nor buildah is here to build the image; use "
                       "--source with a stock image instead");
    if (*registry->host)
        snprintf(repository, sizeof repository, "%s/adaptdl-submit", registry->host);
    else
        snprintf(repository, sizeof repository, "%s", given);
    put_tag(tag, sizeof tag, repository);
    status = build(builder, tag, dockerfile, directory);
    return status == EXIT_DONE ? push_and_pin(k, builder, tag, repository, registry, out) : status;
}
