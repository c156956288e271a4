/* The embedded dashboard: every file of web/ is there byte for byte, and nothing else is found. */
#include "base/buf.h"
#include "base/file.h"
#include "harness.h"
#include "web/web.h"

#include <dirent.h>

static bool same_as_file(const char *name, const adli_web_file *file)
{
    char path[300];
    snprintf(path, sizeof path, "web/%s", name);
    adli_buf buf;
    adli_buf_init(&buf, 1 << 22);
    bool same = adli_file_read(path, &buf) == ADL_OK && buf.length == file->length &&
                memcmp(buf.data, file->data, file->length) == 0;
    adli_buf_fini(&buf);
    return same;
}

TEST(every_file_is_embedded_byte_for_byte)
{
    DIR *dir = opendir("web");
    REQUIRE(dir);
    int count = 0;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.')
            continue;
        char path[300];
        bool page = strcmp(entry->d_name, "index.html") == 0;
        snprintf(path, sizeof path, page ? "/" : "/dashboard/%s", entry->d_name);
        adli_web_file file;
        if (!adli_web_asset(path, &file))
            ADLT_FAIL("%s is not served", path);
        else if (!same_as_file(entry->d_name, &file))
            ADLT_FAIL("%s differs from web/%s", path, entry->d_name);
        else
            count++;
    }
    closedir(dir);
    CHECK(count >= 3);
    printf("info - %d files\n", count);
}

TEST(types_and_etags)
{
    adli_web_file page, style, script;
    REQUIRE(adli_web_asset("/", &page));
    REQUIRE(adli_web_asset("/dashboard/style.css", &style));
    REQUIRE(adli_web_asset("/dashboard/app.js", &script));
    CHECK_STR(page.content_type, "text/html; charset=utf-8");
    CHECK_STR(style.content_type, "text/css; charset=utf-8");
    CHECK_STR(script.content_type, "text/javascript; charset=utf-8");
    CHECK_INT(strlen(page.etag), 34);
    CHECK(page.etag[0] == '"' && page.etag[33] == '"');
    CHECK(strcmp(page.etag, style.etag) != 0);
}

TEST(nothing_else_is_found)
{
    static const char *const paths[] = {"",
                                        "index.html",
                                        "/index.html",
                                        "/dashboard",
                                        "/dashboard/",
                                        "app.js",
                                        "/app.js",
                                        "/dashboard/../etc/passwd",
                                        "/dashboard/app.js/",
                                        "//",
                                        "/dashboard//app.js"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        adli_web_file file = {0};
        if (adli_web_asset(paths[i], &file) || file.data)
            ADLT_FAIL("\"%s\" was found", paths[i]);
    }
}
