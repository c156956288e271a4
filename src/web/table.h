/* The generated table of embedded files: what web.c reads and embed.cmake writes. */
#ifndef ADLI_WEB_TABLE_H
#define ADLI_WEB_TABLE_H

#include "web/web.h"

typedef struct adli_web_entry {
    const char *path; /* "/" or "/dashboard/app.js"; NULL at the end */
    adli_web_file file;
} adli_web_entry;

extern const adli_web_entry adli_web_table[];

#endif
