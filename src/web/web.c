/* Looks a path up in the table that embed.cmake writes from the files of web/. */
#include "web/web.h"

#include "web/table.h"

#include <string.h>

bool adli_web_asset(const char *path, adli_web_file *out)
{
    for (const adli_web_entry *entry = adli_web_table; entry->path; entry++) {
        if (strcmp(entry->path, path) == 0) {
            *out = entry->file;
            return true;
        }
    }
    return false;
}
