/* Images: what Dockerfiles make of directories, the way through an archive and back, and
 * archives that somebody else made. */
#include "harness.h"

#include "base/file.h"
#include "base/mem.h"
#include "image/dockerfile.h"
#include "image/ignore.h"
#include "image/image.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a directory to work in ---- */

static char base[64];

static const char *at(const char *name)
{
    static char paths[8][4600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, 4600, "%s/%s", base, name);
    return path;
}

static int remove_one(const char *path, const struct stat *seen, int type, struct FTW *where)
{
    (void)seen, (void)type, (void)where;
    return remove(path);
}

static void clear(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void begin(void)
{
    if (!*base) {
        strcpy(base, "/tmp/adl-image-XXXXXX");
        if (!mkdtemp(base))
            abort();
    }
    clear(at("d"));
    clear(at("out"));
    mkdir(at("d"), 0755);
    mkdir(at("out"), 0755);
}

__attribute__((destructor)) static void end(void)
{
    if (*base)
        clear(base);
}

/* Writes d/NAME, with the directories that lead to it. */
static void put(const char *name, const char *text)
{
    char path[4600];
    snprintf(path, sizeof path, "%s/d/%s", base, name);
    for (char *p = path + strlen(base) + 3; *p; p++) {
        if (*p == '/') {
            *p = '\0';
            mkdir(path, 0755);
            *p = '/';
        }
    }
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

static bool same_text(const char *path, const char *text)
{
    adli_buf buf;
    adli_buf_init(&buf, 1 << 20);
    bool same = adli_file_read(path, &buf) == ADL_OK && strcmp(buf.data, text) == 0;
    adli_buf_fini(&buf);
    return same;
}

/* "a b/ c": all entries of the image. */
static const char *paths(const adli_image *image)
{
    static char text[8000];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; adli_image_path(image, i); i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "",
                                 adli_image_path(image, i));
    return text;
}

static const char *words(const char *const *list)
{
    static char texts[4][4000];
    static int next;
    char *text = texts[next++ % 4];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; list && list[i]; i++)
        used += (size_t)snprintf(text + used, 4000 - used, "%s%s", i ? "|" : "", list[i]);
    return text;
}

static adl_status build(const char *dockerfile, adli_image **image)
{
    put("Dockerfile", dockerfile);
    return adli_image_build(at("d"), at("d/Dockerfile"), image);
}

#define CHECK_TEXT(got, wanted)                                                                    \
    do {                                                                                           \
        const char *adlt_got = (got);                                                              \
        if (strcmp(adlt_got, (wanted)) != 0)                                                       \
            ADLT_FAIL("\"%s\", wanted \"%s\"", adlt_got, (wanted));                                \
    } while (0)

/* ---- Dockerfiles ---- */

TEST(the_hello_world_of_the_documentation)
{
    adli_image *image;
    begin();
    put("hello_world.py", "print('hi')\n");
    REQUIRE_OK(build("FROM python:3.7-slim\nRUN python3 -m pip install adaptdl\n\n"
                     "COPY hello_world.py /root/hello_world.py\n\nENV PYTHONUNBUFFERED=true\n",
                     &image));
    CHECK_TEXT(paths(image), "root/hello_world.py");
    const adli_image_config *config = adli_image_get_config(image);
    CHECK_TEXT(words(config->env), "PYTHONUNBUFFERED=true");
    CHECK(!config->workdir && !config->entrypoint && !config->cmd);
    CHECK(strstr(adli_image_note(image, 0), "FROM, RUN ignored"));
    CHECK(!adli_image_note(image, 1));
    adli_image_free(image);
}

TEST(a_directory_without_a_dockerfile_is_the_workspace)
{
    adli_image *image;
    begin();
    put("train.py", "x");
    put("lib/a.py", "y");
    put(".git/config", "z");
    REQUIRE_OK(adli_image_build(at("d"), NULL, &image));
    CHECK_TEXT(paths(image), "workspace/ workspace/lib/ workspace/lib/a.py workspace/train.py");
    CHECK_TEXT(adli_image_get_config(image)->workdir, "/workspace");
    CHECK(adli_image_bytes(image) == 2);
    adli_image_free(image);
}

static void make_sources(void)
{
    begin();
    put("a.py", "a");
    put("b.py", "b");
    put("c.txt", "c");
    put("src/x.c", "x");
    put("src/sub/y.c", "y");
}

/* The entries of the image that `FROM x` and these lines make of the files above. */
static const char *result(const char *lines)
{
    adli_image *image;
    char text[2000];
    make_sources();
    snprintf(text, sizeof text, "FROM x\n%s\n", lines);
    if (build(text, &image) != ADL_OK)
        return adl_error();
    const char *list = paths(image);
    adli_image_free(image);
    return list;
}

TEST(copy_follows_dockers_rules)
{
    CHECK_TEXT(result("COPY a.py /x.py"), "x.py");
    CHECK_TEXT(result("COPY a.py /app/"), "app/a.py");
    CHECK_TEXT(result("COPY *.py /app/"), "app/a.py app/b.py");
    CHECK_TEXT(result("COPY a.py b.py c.txt /app"), "app/a.py app/b.py app/c.txt");
    CHECK_TEXT(result("COPY src /app"), "app/ app/sub/ app/sub/y.c app/x.c");
    CHECK_TEXT(result("COPY src /app/"), "app/ app/sub/ app/sub/y.c app/x.c");
    CHECK_TEXT(result("COPY src/*/y.c /app/"), "app/y.c");
    CHECK_TEXT(result("COPY [\"a.py\", \"/with space/\"]"), "with space/a.py");
    CHECK_TEXT(result("COPY \"a.py\" '/with space/'"), "with space/a.py");
    CHECK_TEXT(result("COPY --chown=me:us --chmod=755 --link a.py /app/"), "app/a.py");
    CHECK_TEXT(result("ADD a.py /app/"), "app/a.py");
    CHECK_TEXT(result("WORKDIR /w\nCOPY a.py ."), "w/ w/a.py");
    CHECK_TEXT(result("WORKDIR /w\nWORKDIR sub/../v\nCOPY a.py ./q/"), "w/ w/v/ w/v/q/a.py");
    CHECK_TEXT(result("WORKDIR /w\nCOPY a.py /w"), "w/ w/a.py");
    CHECK_TEXT(result("COPY /a.py /app/"), "app/a.py");
    CHECK_TEXT(result("COPY ./src/./x.c /app/"), "app/x.c");
    CHECK_TEXT(result("COPY a.py ../../../etc/a"), "etc/a");
    CHECK_TEXT(result("copy a.py \\\n# a comment\n\n   b.py /app/"), "app/a.py app/b.py");
    CHECK_TEXT(result("COPY a.py /p\nCOPY src/x.c /p"), "p");
    CHECK_TEXT(result("ENV D=/deep/er\nCOPY a.py ${D}/\nCOPY b.py $D/b"), "deep/er/a.py deep/er/b");
    CHECK_TEXT(result("ARG V=3\nCOPY a.py /v${V}/${Z:-none}${V:+set}/"), "v3/noneset/a.py");
}

TEST(mistakes_name_file_line_and_reason)
{
    static const struct {
        const char *lines, *part;
    } cases[] = {
        {"COPY none.py /x", ":2: \"none.py\": no such file"},
        {"\n\nCOPY ../secret /x", ":4: \"../secret\" leads out"},
        {"COPY src/../../d/a.py /x", ":2: \"src/../../d/a.py\" leads out"},
        {"COPY a.py", ":2: COPY needs a source and a destination"},
        {"COPY --chmod=u+x a.py /x", ":2: --chmod=u+x: expected an octal mode"},
        {"COPY --exclude=x a.py /x", ":2: --exclude=x is not supported"},
        {"COPY <<EOF /x\ntext\nEOF", ":2: COPY <<... is not supported"},
        {"RUN <<EOF\nnever ends", ":2: the text after <<EOF has no end"},
        {"ADD data.tar.gz /x", ":2: \"data.tar.gz\": no such file"},
        {"FETCH a b", ":2: unknown instruction FETCH"},
        {"ENV A", ":2: ENV A: no value"},
        {"ENV A=1 B", ":2: \"B\": expected NAME=value"},
        {"ENV A\"=x", ":2: "},
        {"ENV A='x", ":2: a quote is not closed"},
        {"ENV A=${B", ":2: \"${B\": not a variable"},
        {"ENV A=${B%x}", ":2: \"${B%x}\": only"},
        {"FROM", ":2: expected: FROM"},
        {"FROM a b c d", ":2: expected: FROM"},
        {"COPY a.py /f\nCOPY b.py /f/g", "/f is a file, and /f/g needs it"},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        const char *text = result(cases[i].lines);
        if (!strstr(text, cases[i].part))
            ADLT_FAIL("%s: \"%s\" lacks \"%s\"", cases[i].lines, text, cases[i].part);
    }
    adli_image *image;
    begin();
    CHECK_FAILS(build("COPY a b\n", &image), ADL_EINVAL, ":1: COPY before the first FROM");
    CHECK_FAILS(build("# nothing\n", &image), ADL_EINVAL, "there is no FROM");
    CHECK_FAILS(build("F@OM x\n", &image), ADL_EINVAL, ":1: \"F@OM x\" is not an instruction");
    CHECK_FAILS(adli_image_build(at("none"), NULL, &image), ADL_ENOENT, "none: No such file");
    CHECK(!image);
}

TEST(what_cannot_be_done_is_noted)
{
    adli_image *image;
    make_sources();
    REQUIRE_OK(build("FROM x\nRUN make\nRUN <<EOF\nCOPY nothing\nEOF\nEXPOSE 80\nUSER me\n"
                     "COPY --from=build /bin/x /x\nADD https://example.com/a /a\nCOPY a.py /\n",
                     &image));
    CHECK_TEXT(paths(image), "a.py");
    CHECK(strstr(adli_image_note(image, 0), "Dockerfile:8: COPY --from is left out"));
    CHECK(strstr(adli_image_note(image, 1), "Dockerfile:9: ADD of an address is left out"));
    CHECK(strstr(adli_image_note(image, 2), "FROM, RUN, EXPOSE, USER ignored"));
    adli_image_free(image);
}

TEST(only_the_last_stage_and_what_it_is_from_count)
{
    adli_image *image;
    make_sources();
    REQUIRE_OK(build("ARG BASE=common\nFROM x AS common\nENV A=1\nCOPY a.py /a\nCMD [\"one\"]\n"
                     "FROM y AS other\nENV B=2\nCOPY b.py /b\n"
                     "FROM --platform=linux common as last\nENV C=3\nCOPY c.txt /c\n",
                     &image));
    CHECK_TEXT(paths(image), "a c");
    CHECK_TEXT(words(adli_image_get_config(image)->env), "A=1|C=3");
    CHECK_TEXT(words(adli_image_get_config(image)->cmd), "one");
    adli_image_free(image);
}

TEST(env_and_commands_in_all_their_forms)
{
    adli_image *image;
    make_sources();
    setenv("PATH", "/machine/bin", 1);
    REQUIRE_OK(
        build("FROM x\nENV A=1 B=\"two words\" C='$A' D=back\\ slash\nENV E all of $A the rest\n"
              "ENV A=9 PATH=/opt/bin:$PATH F=\"\\$A ${A} ${NO:-x y}\" G=$\n"
              "ENTRYPOINT [\"python3\", \"train.py\"]\nCMD [\"--epochs\", \"1\"]\n",
              &image));
    const adli_image_config *config = adli_image_get_config(image);
    CHECK_TEXT(words(config->env), "A=9|B=two words|C=$A|D=back slash|E=all of 1 the rest|"
                                   "PATH=/opt/bin:/machine/bin|F=$A 1 x y|G=$");
    CHECK_TEXT(words(config->entrypoint), "python3|train.py");
    CHECK_TEXT(words(config->cmd), "--epochs|1");
    adli_image_free(image);
    REQUIRE_OK(build(
        "# escape=`\nFROM x\nENV A=c:\\x `\n  B=2\nCMD exec python3 $HOME/x.py\nENTRYPOINT []\n",
        &image));
    config = adli_image_get_config(image);
    CHECK_TEXT(words(config->env), "A=c:\\x|B=2");
    CHECK_TEXT(words(config->cmd), "/bin/sh|-c|exec python3 $HOME/x.py");
    CHECK(!config->entrypoint);
    adli_image_free(image);
}

TEST(dockerignore_leaves_out)
{
    adli_image *image;
    begin();
    put("keep.py", "");
    put("a.log", "");
    put("sub/b.log", "");
    put("sub/deep/c.log", "");
    put("sub/deep/keep.log", "");
    put("data/x", "");
    put("data/readme", "");
    put(".dockerignore",
        "# comment\n\n**/*.log\n!sub/deep/keep.log\n/data/\n!data/readme\n.dockerignore\n"
        "Dockerfile\n");
    REQUIRE_OK(build("FROM x\nCOPY . /w\n", &image));
    CHECK_TEXT(paths(image), "w/ w/data/ w/data/readme w/keep.py w/sub/ w/sub/deep/ "
                             "w/sub/deep/keep.log");
    adli_image_free(image);
    CHECK_FAILS(build("FROM x\nCOPY a.log /\n", &image), ADL_EINVAL, ".dockerignore leaves it out");
    put("Dockerfile.dockerignore", "*\n!keep.py\n");
    REQUIRE_OK(build("FROM x\nCOPY . /w\n", &image));
    CHECK(strstr(paths(image), "w/keep.py") && !strstr(paths(image), "readme"));
    adli_image_free(image);
}

TEST(patterns_of_dockerignore)
{
    static const struct {
        const char *pattern, *path;
        bool match;
    } cases[] = {
        {"a", "a", true},
        {"a", "a/b", true},
        {"a", "b/a", false},
        {"*", "a", true},
        {"*", "a/b", true},
        {"*.c", "x.c", true},
        {"*.c", "d/x.c", false},
        {"**/*.c", "x.c", true},
        {"**/*.c", "d/e/x.c", true},
        {"**", "a/b", true},
        {"a/**", "a", true},
        {"a/**/z", "a/z", true},
        {"a/**/z", "a/b/c/z", true},
        {"a/**/z", "a/b/c", false},
        {"a/*/c", "a/b/c", true},
        {"**/b/**/d", "a/b/c/b/x/d", true},
        {"**/b/**/d", "a/c/d", false},
        {"a?", "ab", true},
        {"[ab]", "b", true},
        {"./a/../b", "b", true},
        {"/a", "a", true},
        {"..", "a", false},
        {"a/", "a", true},
        {"**/**/x", "x", true},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adli_ignore ignore = {0};
        CHECK_OK(adli_ignore_parse(&ignore, cases[i].pattern, strlen(cases[i].pattern)));
        if (adli_ignore_match(&ignore, cases[i].path) != cases[i].match)
            ADLT_FAIL("\"%s\" and \"%s\"", cases[i].pattern, cases[i].path);
        adli_ignore_fini(&ignore);
    }
}

TEST(links_are_followed_inside_and_left_out_otherwise)
{
    adli_image *image;
    begin();
    put("real/file", "text");
    CHECK(symlink("real/file", at("d/inside")) == 0);
    CHECK(symlink("real", at("d/dir")) == 0);
    CHECK(symlink("/etc/passwd", at("d/outside")) == 0);
    CHECK(symlink("..", at("d/up")) == 0);
    CHECK(symlink("../dir", at("d/real/round")) == 0);
    CHECK(symlink("nowhere", at("d/broken")) == 0);
    CHECK(mkfifo(at("d/fifo"), 0600) == 0);
    REQUIRE_OK(adli_image_build(at("d"), NULL, &image));
    CHECK_TEXT(paths(image), "workspace/ workspace/dir/ workspace/dir/file workspace/inside "
                             "workspace/real/ workspace/real/file");
    CHECK(strstr(adli_image_note(image, 0), "6 left out"));
    adli_image_free(image);
    CHECK_FAILS(build("FROM x\nCOPY outside /x\n", &image), ADL_EINVAL, "leads out");
    CHECK_FAILS(build("FROM x\nCOPY up /x\n", &image), ADL_EINVAL,
                "Dockerfile:2: \"up\" leads out");
}

/* ---- there and back ---- */

static int new_file(const char *path)
{
    return open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
}

TEST(a_job_goes_there_and_back)
{
    adli_image *image;
    adli_buf job;
    bool yaml = false;
    struct stat seen;
    char deep[700] = "";
    begin();
    for (int i = 0; i < 10; i++)
        snprintf(deep + strlen(deep), sizeof deep - strlen(deep), "%s%d%050d", i ? "/" : "", i, i);
    put(deep, "deep");
    put("run.sh", "#!/bin/sh\n");
    chmod(at("d/run.sh"), 0700);
    put("empty", "");
    put("caf\xc3\xa9 \xe2\x82\xac", "utf8");
    put("latin\xe9", "not utf8");
    mkdir(at("d/nothing"), 0755);
    REQUIRE_OK(adli_image_build(at("d"), NULL, &image));
    int fd = new_file(at("one.tar"));
    REQUIRE_OK(adli_image_pack(image, "kind: X\n", 8, true, fd));
    close(fd);
    fd = new_file(at("two.tar"));
    CHECK_OK(adli_image_pack(image, "kind: X\n", 8, true, fd));
    close(fd);
    adli_image_free(image);
    adli_buf_init(&job, 1 << 20);
    REQUIRE_OK(adli_image_read_job(at("one.tar"), &job, &yaml));
    CHECK(yaml);
    CHECK_TEXT(job.data, "kind: X\n");
    adli_buf_fini(&job);
    REQUIRE_OK(adli_image_unpack(at("one.tar"), at("out"), NULL));
    char path[2000];
    snprintf(path, sizeof path, "%s/out/workspace/%s", base, deep);
    CHECK(same_text(path, "deep"));
    CHECK(same_text(at("out/workspace/caf\xc3\xa9 \xe2\x82\xac"), "utf8"));
    CHECK(same_text(at("out/workspace/latin\xe9"), "not utf8"));
    CHECK(same_text(at("out/workspace/empty"), ""));
    CHECK(stat(at("out/workspace/run.sh"), &seen) == 0 && (seen.st_mode & 0777) == 0755);
    CHECK(stat(at("out/workspace/empty"), &seen) == 0 && (seen.st_mode & 0777) == 0644);
    CHECK(stat(at("out/workspace/nothing"), &seen) == 0 && S_ISDIR(seen.st_mode));
    adli_buf one, two;
    adli_buf_init(&one, 1 << 20);
    adli_buf_init(&two, 1 << 20);
    CHECK_OK(adli_file_read(at("one.tar"), &one));
    CHECK_OK(adli_file_read(at("two.tar"), &two));
    CHECK(one.length == two.length && memcmp(one.data, two.data, one.length) == 0);
    adli_buf_fini(&one);
    adli_buf_fini(&two);
}

TEST(a_job_without_files)
{
    adli_buf job;
    bool yaml = true;
    begin();
    int fd = new_file(at("one.tar"));
    REQUIRE_OK(adli_image_pack(NULL, "{}", 2, false, fd));
    close(fd);
    adli_buf_init(&job, 100);
    CHECK_OK(adli_image_read_job(at("one.tar"), &job, &yaml));
    CHECK(!yaml && job.length == 2);
    CHECK_OK(adli_image_unpack(at("one.tar"), at("out"), NULL));
    CHECK(rmdir(at("out")) == 0);
    adli_buf_fini(&job);
}

TEST(a_file_that_changes_while_it_is_packed)
{
    adli_image *image;
    begin();
    put("grows", "1");
    put("shrinks", "123");
    REQUIRE_OK(adli_image_build(at("d"), NULL, &image));
    int fd = new_file(at("one.tar"));
    put("grows", "12");
    CHECK_FAILS(adli_image_pack(image, "", 0, true, fd), ADL_EIO, "its size changed");
    put("grows", "1");
    put("shrinks", "1");
    CHECK_FAILS(adli_image_pack(image, "", 0, true, fd), ADL_EIO, "its size changed");
    unlink(at("d/shrinks"));
    CHECK_FAILS(adli_image_pack(image, "", 0, true, fd), ADL_EIO, "No such file");
    close(fd);
    adli_image_free(image);
}

/* ---- archives of others ---- */

typedef struct tar_entry {
    const char *name;
    char type; /* '0' file, '5' directory, '1' hard link, '2' link, '3' device ... */
    const char *link, *data;
    unsigned long long size; /* ULLONG_MAX: that of data */
} tar_entry;

#define OWN_SIZE 0xffffffffffffffffull
#define JOB                                                                                        \
    {                                                                                              \
        "job.yaml", '0', "", "x: 1\n", OWN_SIZE                                                    \
    }

static void put_entry(FILE *out, const tar_entry *e)
{
    char head[512] = {0};
    unsigned long long size = e->size == OWN_SIZE ? strlen(e->data) : e->size;
    unsigned sum = 0;
    memcpy(head, e->name, strnlen(e->name, 100));
    memcpy(head + 100, "0000644", 8);
    memcpy(head + 108, "0000000", 8);
    memcpy(head + 116, "0000000", 8);
    char octal[32];
    snprintf(octal, sizeof octal, "%011llo", size);
    memcpy(head + 124, octal, 12);
    memcpy(head + 136, "00000000000", 12);
    memset(head + 148, ' ', 8);
    head[156] = e->type;
    memcpy(head + 157, e->link, strnlen(e->link, 100));
    memcpy(head + 257,
           "ustar\0"
           "00",
           8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    fwrite(head, 1, 512, out);
    size_t length = strlen(e->data);
    char block[512] = {0};
    for (size_t i = 0; i < length; i += 512) {
        memset(block, 0, sizeof block);
        memcpy(block, e->data + i, length - i < 512 ? length - i : 512);
        fwrite(block, 1, 512, out);
    }
}

static void write_tar(const tar_entry *entries, size_t count, bool ended)
{
    static const char zeros[1024];
    FILE *out = fopen(at("bad.tar"), "w");
    for (size_t i = 0; i < count; i++)
        put_entry(out, &entries[i]);
    if (ended)
        fwrite(zeros, 1, sizeof zeros, out);
    fclose(out);
}

static adl_status unpack_two(tar_entry second)
{
    tar_entry entries[] = {JOB, second};
    begin();
    put("../sentinel", "safe");
    write_tar(entries, 2, true);
    return adli_image_unpack(at("bad.tar"), at("out"), NULL);
}

TEST(hostile_entries_are_refused)
{
    static const struct {
        tar_entry e;
        const char *part;
    } cases[] = {
        {{"image/../../sentinel", '0', "", "bad", OWN_SIZE}, "\"..\" is not allowed"},
        {{"../sentinel", '0', "", "bad", OWN_SIZE}, "\"..\" is not allowed"},
        {{"image/..", '5', "", "", OWN_SIZE}, "\"..\" is not allowed"},
        {{"/etc/passwd", '0', "", "bad", OWN_SIZE}, "absolute"},
        {{"image//x", '0', "", "bad", OWN_SIZE}, "empty"},
        {{"image/./x", '0', "", "bad", OWN_SIZE}, "empty or \".\""},
        {{"elsewhere/x", '0', "", "bad", OWN_SIZE}, "must be below image/"},
        {{"imagex", '0', "", "bad", OWN_SIZE}, "must be below image/"},
        {{"image", '0', "", "bad", OWN_SIZE}, "must be a directory"},
        {{"job.yaml", '0', "", "bad", OWN_SIZE}, "must be below image/"},
        {{"image/l", '2', "/etc", "", OWN_SIZE}, "no links or devices"},
        {{"image/l", '1', "/etc/passwd", "", OWN_SIZE}, "no links or devices"},
        {{"image/l", '1', "job.yaml", "", OWN_SIZE}, "no links or devices"},
        {{"image/d", '3', "", "", OWN_SIZE}, "no links or devices"},
        {{"image/d", '4', "", "", OWN_SIZE}, "no links or devices"},
        {{"image/d", '6', "", "", OWN_SIZE}, "no links or devices"},
        {{"image/huge", '0', "", "", 077777777777}, ""},
    };
    for (size_t i = 0; i < ADLI_COUNT(cases); i++) {
        adl_status status = unpack_two(cases[i].e);
        if (status == ADL_OK || !strstr(adl_error(), cases[i].part))
            ADLT_FAIL("%s: %s \"%s\", wanted \"%s\"", cases[i].e.name, adl_status_text(status),
                      adl_error(), cases[i].part);
        CHECK(same_text(at("sentinel"), "safe"));
    }
}

TEST(limits_and_damage)
{
    tar_entry twice[] = {
        JOB, {"image/a", '0', "", "1", OWN_SIZE}, {"image/a", '0', "", "2", OWN_SIZE}};
    tar_entry through[] = {
        JOB, {"image/a", '0', "", "1", OWN_SIZE}, {"image/a/b", '0', "", "2", OWN_SIZE}};
    tar_entry three[] = {
        JOB, {"image/a", '0', "", "1234", OWN_SIZE}, {"image/b", '0', "", "5678", OWN_SIZE}};
    tar_entry late[] = {{"image/a", '0', "", "1", OWN_SIZE}, JOB};
    tar_entry cut[] = {JOB, {"image/a", '0', "", "1234", 5000}};
    adli_image_limits few = {.max_entries = 2}, small = {.max_bytes = 7}, fits = {8, 3};
    adli_buf job;
    bool yaml;
    begin();
    write_tar(twice, 3, true);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_EINVAL, "File exists");
    begin();
    write_tar(through, 3, true);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_EINVAL, "image/a/b");
    begin();
    write_tar(three, 3, true);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), &few), ADL_EINVAL, "too many entries");
    begin();
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), &small), ADL_EINVAL, "too large");
    begin();
    CHECK_OK(adli_image_unpack(at("bad.tar"), at("out"), &fits));
    begin();
    write_tar(late, 2, true);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_EINVAL, "not job.yaml");
    adli_buf_init(&job, 100);
    CHECK_FAILS(adli_image_read_job(at("bad.tar"), &job, &yaml), ADL_EINVAL, "not job.yaml");
    begin();
    write_tar(cut, 2, false);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_ECORRUPT, "damaged");
    FILE *file = fopen(at("bad.tar"), "w");
    fputs("this is no archive", file);
    fclose(file);
    CHECK(adli_image_unpack(at("bad.tar"), at("out"), NULL) != ADL_OK);
    CHECK(adli_image_read_job(at("bad.tar"), &job, &yaml) != ADL_OK);
    fclose(fopen(at("bad.tar"), "w"));
    CHECK(adli_image_read_job(at("bad.tar"), &job, &yaml) != ADL_OK);
    CHECK_FAILS(adli_image_read_job(at("none.tar"), &job, &yaml), ADL_ENOENT, "none.tar");
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("none"), NULL), ADL_ENOENT, "none");
    adli_buf_fini(&job);
}

TEST(an_existing_link_is_not_written_through)
{
    tar_entry entries[] = {JOB, {"image/dir/file", '0', "", "bad", OWN_SIZE}};
    begin();
    mkdir(at("d/victim"), 0755);
    CHECK(symlink(at("d/victim"), at("out/dir")) == 0);
    write_tar(entries, 2, true);
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_EINVAL, "image/dir/file");
    CHECK(access(at("d/victim/file"), F_OK) != 0);
}

/* Every allocation fails once. */
TEST(no_memory_is_only_a_failure)
{
    make_sources();
    put("Dockerfile", "FROM x AS y\nARG V=1\nENV A=$V B=2\nWORKDIR /w\nCOPY src *.py /app/\n"
                      "COPY [\"a.py\", \"/b\"]\nCMD [\"x\"]\nENTRYPOINT y\nRUN z\n");
    int64_t nth = 1;
    for (; nth < 100000; nth++) {
        adli_image *image;
        adli_mem_fail_at(nth);
        adl_status status = adli_image_build(at("d"), at("d/Dockerfile"), &image);
        adli_mem_fail_at(0);
        if (status == ADL_OK) {
            adli_image_free(image);
            break;
        }
        CHECK(status != ADL_OK && !image);
    }
    CHECK(nth > 50 && nth < 100000);
    printf("info - %lld allocations failed\n", (long long)nth - 1);
}

/* A hole is a few bytes in the archive and would be gigabytes in the directory. */
TEST(a_sparse_entry_is_refused)
{
    char command[8192];
    begin();
    snprintf(command, sizeof command,
             "export PATH=/usr/bin:/bin; mkdir -p '%s/s/image' && cd '%s/s' && echo x >job.yaml && "
             "truncate -s 3G image/big && "
             "tar -cSf '%s' job.yaml image",
             at("."), at("."), at("bad.tar"));
    if (system(command) != 0)
        SKIP("no tar that makes sparse entries");
    CHECK_FAILS(adli_image_unpack(at("bad.tar"), at("out"), NULL), ADL_EINVAL, "sparse files");
}
