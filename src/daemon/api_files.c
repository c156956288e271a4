/* A job's files, as its backend opens them. */
#include "daemon/api_impl.h"

#include "base/json_write.h"
#include "base/utf8.h"
#include "httpd/target.h"

#include <string.h>

enum { LISTING_MAX = 32 << 20 };

static void put_entry(adli_buf *out, const adli_entry *entry)
{
    bool exact = adli_utf8_valid(entry->name);
    adli_target_printable(entry->name);
    adli_jw_open(out, NULL, '{');
    adli_jw_text(out, "name", entry->name);
    adli_jw_int(out, "size", entry->size);
    adli_jw_bool(out, "directory", entry->directory);
    if (!exact) /* its bytes are no text: nobody can ask for it */
        adli_jw_bool(out, "exact", false);
    adli_jw_close(out, '}');
}

static void answer_directory(adli_httpd_request *request, const adli_opened *opened)
{
    adli_buf out;
    adli_buf_init(&out, LISTING_MAX);
    adli_jw_open(&out, NULL, '{');
    adli_jw_bool(&out, "directory", true);
    adli_jw_open(&out, "entries", '[');
    for (size_t i = 0; i < opened->count; i++)
        put_entry(&out, &opened->entries[i]);
    adli_jw_close(&out, ']');
    adli_jw_close(&out, '}');
    adli_buf_puts(&out, "\n");
    adli_httpd_set_header(request, "X-Adaptdl-Directory", "1");
    adli_api_answer(request, ADL_OK, 200, &out);
}

adli_httpd_verdict adli_api_files(void *user, adli_httpd_request *request)
{
    adli_api *api = user;
    const char *path = adli_httpd_query(request, "path");
    adli_opened opened;
    adl_status status = adli_core_open_file(api->core, adli_httpd_part(request, 0),
                                            adli_httpd_part(request, 1), path ? path : "", &opened);
    if (status == ADL_ESTATE)
        adli_httpd_answer_error(request, 403, "%s", adl_error());
    else if (status != ADL_OK)
        adli_api_answer_failure(request, status);
    else if (opened.directory)
        answer_directory(request, &opened);
    else {
        adli_httpd_set_header(request, "Content-Disposition", "attachment");
        adli_httpd_answer_file(request, "application/octet-stream", opened.fd, 0, opened.size);
        opened.fd = -1; /* the answer's */
    }
    adli_opened_fini(&opened);
    return ADLI_HTTPD_DONE;
}
