/* The dashboard's files, which need no token: they hold no data. */
#include "daemon/api_impl.h"

#include "web/web.h"

#include <stdio.h>
#include <string.h>

static adli_httpd_verdict answer_asset(adli_httpd_request *request, const char *path)
{
    adli_web_file file;
    const char *known = adli_httpd_header(request, "If-None-Match");
    if (!adli_web_asset(path, &file)) {
        adli_httpd_answer_error(request, 404, "%.200s: no such thing", path);
        return ADLI_HTTPD_DONE;
    }
    adli_httpd_set_header(request, "ETag", file.etag);
    adli_httpd_set_header(request, "Cache-Control", "no-cache");
    adli_httpd_set_header(request, "Content-Security-Policy", ADLI_WEB_CSP);
    if (known && strcmp(known, file.etag) == 0)
        adli_httpd_answer_static(request, 304, NULL, "", 0);
    else
        adli_httpd_answer_static(request, 200, file.content_type, file.data, file.length);
    return ADLI_HTTPD_DONE;
}

adli_httpd_verdict adli_api_page(void *user, adli_httpd_request *request)
{
    (void)user;
    return answer_asset(request, "/");
}

adli_httpd_verdict adli_api_asset(void *user, adli_httpd_request *request)
{
    char path[512];
    (void)user;
    snprintf(path, sizeof path, "/dashboard/%s", adli_httpd_part(request, 0));
    return answer_asset(request, path);
}
