/* What the launcher tells the other end of an ssh connection, as bytes. Through standard input and not on the
 * command line, where every user of the machine could read the job's secret. */
#include "launch/remote.h"

#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

enum { STRINGS_MAX = 1 << 16, LOCAL_MAX = 1 << 20 };

static void put(adli_buf *buf, const char *text)
{
    adli_buf_append(buf, text, strlen(text) + 1);
}

adl_status adli_request_write(adli_buf *out, int local_count, char *const *argv)
{
    adli_buf body;
    char *directory = getcwd(NULL, 0);
    if (!directory)
        return adli_fail(ADL_EIO, "this directory has no name: %s", strerror(errno));
    adli_buf_init(&body, ADLI_REQUEST_MAX);
    adli_buf_printf(&body, "%d", local_count);
    put(&body, ""); /* the NUL of the number */
    put(&body, directory);
    free(directory);
    for (char **variable = environ; *variable; variable++)
        if ((strncmp(*variable, "ADAPTDL_", 8) == 0 &&
             strncmp(*variable, "ADAPTDL_TOKEN=", 14) != 0) ||
            strncmp(*variable, "OMP_NUM_THREADS=", 16) == 0)
            put(&body, *variable);
    put(&body, "");
    for (int i = 0; argv[i]; i++)
        put(&body, argv[i]);
    put(&body, "");
    adl_status status = adli_buf_check(&body);
    if (status == ADL_OK) {
        adli_buf_printf(out, "%s %zu\n", ADLI_REQUEST_MAGIC, body.length);
        adli_buf_append(out, body.data, body.length);
        status = adli_buf_check(out);
    }
    adli_buf_fini(&body);
    return status;
}

long adli_request_length(const char *head)
{
    size_t magic = strlen(ADLI_REQUEST_MAGIC);
    if (strncmp(head, ADLI_REQUEST_MAGIC " ", magic + 1) != 0 || head[magic + 1] < '0' ||
        head[magic + 1] > '9')
        return -1;
    char *end;
    errno = 0;
    long length = strtol(head + magic + 1, &end, 10);
    return *end == '\n' && errno == 0 && length > 0 && length <= ADLI_REQUEST_MAX ? length : -1;
}

/* The next string; NULL when there is none. */
static char *next(char **at, const char *end)
{
    char *text = *at;
    if (text >= end)
        return NULL;
    *at = text + strlen(text) + 1;
    return text;
}

/* The strings up to an empty one; *list goes on after them and a NULL. */
static bool read_list(char **at, const char *end, char ***list, const char *const *limit)
{
    char *text;
    while ((text = next(at, end)) && *text && (const char *const *)*list < limit)
        *(*list)++ = text;
    *(*list)++ = NULL;
    return text && !*text;
}

adl_status adli_request_parse(char *data, size_t length, adli_request *out)
{
    *out = (adli_request){0};
    if (length == 0 || data[length - 1] != '\0')
        return adli_fail(ADL_EINVAL, "request: cut off");
    char *at = data, *end = data + length, *rest = NULL;
    char *count = next(&at, end);
    long local = strtol(count, &rest, 10);
    if (rest == count || *rest || local < 1 || local > LOCAL_MAX)
        return adli_fail(ADL_EINVAL, "request: \"%.20s\" replicas on a machine", count);
    out->local_count = (int)local;
    out->directory = next(&at, end);
    char **lists = adli_calloc(STRINGS_MAX + 2, sizeof *lists);
    if (!lists)
        return adli_fail_memory("request");
    const char *const *limit = (const char *const *)lists + STRINGS_MAX;
    out->lists = out->variables = lists;
    bool whole = out->directory && read_list(&at, end, &lists, limit);
    out->argv = lists;
    whole = whole && read_list(&at, end, &lists, limit);
    bool named = true;
    for (char **variable = out->variables; whole && *variable; variable++)
        named = named && strchr(*variable, '=') > *variable;
    if (whole && named && out->argv[0] && at == end)
        return ADL_OK;
    adli_request_fini(out);
    return adli_fail(ADL_EINVAL, "request: not a directory, variables and a program");
}

void adli_request_fini(adli_request *request)
{
    free(request->lists);
    *request = (adli_request){0};
}
