#include "launch/hosts.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Letters of host names, addresses (also of IPv6) and users. A name that starts with '-' would be an option. */
static adl_status check_name(const char *name)
{
    const char *bare = strrchr(name, '@') ? strrchr(name, '@') + 1 : name;
    if (*name == '\0' || *bare == '\0')
        return adli_fail(ADL_EINVAL, "--hosts: a name is empty");
    if (*name == '-' || *bare == '-' || strlen(name) > ADLI_HOST_MAX ||
        name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:@%")])
        return adli_fail(ADL_EINVAL, "--hosts: \"%s\" is not the name of a machine", name);
    return ADL_OK;
}

static adl_status split_ssh(adli_hosts *hosts, char *command)
{
    int words = 0;
    char *rest = NULL;
    for (char *word = strtok_r(command, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (words == ADLI_SSH_WORDS)
            return adli_fail(ADL_EINVAL, "--ssh: more than %d words", ADLI_SSH_WORDS);
        hosts->ssh[words++] = word;
    }
    return words > 0 ? ADL_OK : adli_fail(ADL_EINVAL, "--ssh: which command?");
}

static adl_status split_names(adli_hosts *hosts, char *list)
{
    for (char *name = list, *end; name; name = end ? end + 1 : NULL) {
        end = strchr(name, ',');
        if (end)
            *end = '\0';
        adl_status status = check_name(name);
        if (status != ADL_OK)
            return status;
        for (int i = 0; i < hosts->count; i++)
            if (strcmp(hosts->name[i], name) == 0)
                return adli_fail(ADL_EINVAL, "--hosts: %s is there twice", name);
        if (hosts->count == ADLI_HOSTS_MAX)
            return adli_fail(ADL_EINVAL, "--hosts: more than %d machines", ADLI_HOSTS_MAX);
        hosts->name[hosts->count++] = name;
    }
    return ADL_OK;
}

adl_status adli_hosts_init(adli_hosts *hosts, const char *list, const char *ssh)
{
    *hosts = (adli_hosts){0};
    if (!list)
        return ADL_OK;
    const char *command = ssh ? ssh : "ssh";
    size_t names = strlen(list) + 1;
    hosts->text = adli_calloc(names + strlen(command) + 1, 1);
    if (!hosts->text)
        return adli_fail_memory("hosts");
    memcpy(hosts->text, list, names);
    memcpy(hosts->text + names, command, strlen(command));
    adl_status status = split_names(hosts, hosts->text);
    if (status == ADL_OK)
        status = split_ssh(hosts, hosts->text + names);
    if (status != ADL_OK)
        adli_hosts_fini(hosts);
    return status;
}

void adli_hosts_fini(adli_hosts *hosts)
{
    free(hosts->text);
    *hosts = (adli_hosts){0};
}

static void become_question(const adli_hosts *hosts, int out)
{
    char *argv[ADLI_SSH_WORDS + 4];
    char option[] = "-G";
    int count = 0;
    for (; hosts->ssh[count]; count++)
        argv[count] = hosts->ssh[count];
    argv[count++] = option;
    argv[count++] = hosts->name[0];
    argv[count] = NULL;
    dup2(out, STDOUT_FILENO);
    execvp(argv[0], argv);
    _exit(127);
}

/* The value of the line "hostname VALUE". */
static void read_hostname(FILE *from, char *out, size_t capacity)
{
    char line[1024];
    while (fgets(line, sizeof line, from)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "hostname ", 9) == 0)
            snprintf(out, capacity, "%.*s", (int)capacity - 1, line + 9);
    }
}

/* `ssh -G NAME`, which connects to nobody. */
static adl_status ask_ssh(adli_hosts *hosts)
{
    int out[2], status = 0;
    if (pipe2(out, O_CLOEXEC) != 0)
        return adli_fail(ADL_EIO, "cannot make a pipe: %s", strerror(errno));
    fflush(NULL);
    pid_t id = fork();
    if (id == 0)
        become_question(hosts, out[1]);
    close(out[1]);
    FILE *from = id > 0 ? fdopen(out[0], "r") : NULL;
    if (from) {
        read_hostname(from, hosts->master, sizeof hosts->master);
        fclose(from);
    } else {
        close(out[0]);
    }
    while (id > 0 && waitpid(id, &status, 0) < 0 && errno == EINTR)
        ;
    if (id < 0)
        return adli_fail(ADL_EIO, "cannot start a process: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return adli_fail(ADL_ENOENT, "--hosts needs ssh: there is no program \"%s\"",
                         hosts->ssh[0]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || hosts->master[0] == '\0')
        return adli_fail(ADL_EINVAL, "--hosts: %s -G %s does not tell the machine's address",
                         hosts->ssh[0], hosts->name[0]);
    return ADL_OK;
}

static bool is_loopback(const char *name)
{
    const char *bare = strrchr(name, '@') ? strrchr(name, '@') + 1 : name;
    return strcmp(bare, "localhost") == 0 || strncmp(bare, "127.", 4) == 0 ||
           strcmp(bare, "::1") == 0;
}

adl_status adli_hosts_find_master(adli_hosts *hosts)
{
    const char *said = getenv("ADAPTDL_MASTER_ADDR");
    if (hosts->count == 0)
        return ADL_OK;
    adl_status status = ask_ssh(hosts);
    if (status != ADL_OK)
        return status;
    if (said && *said)
        snprintf(hosts->master, sizeof hosts->master, "%.*s", ADLI_HOST_MAX, said);
    for (int i = 1; i < hosts->count && is_loopback(hosts->master); i++)
        if (!is_loopback(hosts->name[i]))
            return adli_fail(ADL_EINVAL,
                             "--hosts: %s could not reach the first machine as %s; name that by an "
                             "address which the others know",
                             hosts->name[i], hosts->master);
    return ADL_OK;
}

adli_place adli_hosts_place(const adli_hosts *hosts, int rank, int replicas)
{
    adli_place place = {0, rank, replicas, 1};
    if (hosts->count == 0)
        return place;
    int less = replicas / hosts->count,
        longer = replicas % hosts->count; /* so many have one more */
    int before = longer * (less + 1);
    bool is_longer = rank < before;
    place.local_count = is_longer ? less + 1 : less;
    place.host = is_longer ? rank / (less + 1) : longer + (rank - before) / less;
    place.local_rank = is_longer ? rank % (less + 1) : (rank - before) % less;
    place.hosts = replicas < hosts->count ? replicas : hosts->count;
    return place;
}
