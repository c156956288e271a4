/* Request lines and the headers that decide on access, from arbitrary bytes: whatever is accepted has no
 * way out of its segment and is clean UTF-8. First line: the URL; second: Authorization; third: Host;
 * fourth: Origin. */
#include "httpd/target.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_segments(const adli_target *url)
{
    for (int i = 0; i < url->segments; i++) {
        const char *segment = url->segment[i];
        if (strchr(segment, '/') || !strcmp(segment, ".") || !strcmp(segment, ".."))
            abort();
        for (const char *at = segment; *at; at++)
            if ((unsigned char)*at < 0x20 || *at == 0x7f)
                abort();
    }
    if (strstr(url->path, "/../") || url->path[0] != '/')
        abort();
}

static void check_match(const adli_target *url, const char *pattern)
{
    const char *parts[ADLI_TARGET_PARTS_MAX];
    if (!adli_target_match(url, pattern, parts))
        return;
    for (int i = 0; i < ADLI_TARGET_PARTS_MAX; i++)
        if (!parts[i] || strlen(parts[i]) > strlen(url->path))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1), *lines[4], *rest, token[64];
    const char *names[] = {"scheduler.example", NULL};
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    rest = text;
    for (int i = 0; i < 4; i++) {
        lines[i] = rest ? strsep(&rest, "\n") : text + strlen(text);
    }
    adli_target url;
    if (adli_target_parse(&url, lines[0]) == ADL_OK) {
        check_segments(&url);
        check_match(&url, "/");
        check_match(&url, "/api/v1/jobs/{}/{}/logs");
        check_match(&url, "/{}/{}/{}");
        check_match(&url, "/dashboard/*");
        check_match(&url, "/{}/*");
        adli_target_query(&url, "path");
    } else if (adl_error()[0] == '\0') {
        abort();
    }
    adli_target_fini(&url);
    if (adli_target_credentials(lines[1], token, sizeof token) && (!*token || strlen(token) >= 64))
        abort();
    if (adli_target_host_allowed(lines[2], names) && adli_target_same_origin(lines[3], lines[2]) &&
        strncasecmp(lines[3], "http", 4) != 0)
        abort();
    adli_target_printable(lines[3]);
    free(text);
    return 0;
}
