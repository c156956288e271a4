/* Programs in containers through exec, and programs here that log in. */
#include "kube/exec.h"
#include "harness.h"
#include "ws_server.h"

#include <fcntl.h>
#include <sys/stat.h>

/* ---- WebSockets ---- */

TEST(the_handshake_is_that_of_the_rfc)
{
    char accept[ADLI_WS_ACCEPT];
    adli_ws_accept("dGhlIHNhbXBsZSBub25jZQ==", accept); /* its own example */
    CHECK_STR(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

/* What a client sends comes back out of it when the masks are taken off, whatever its length. */
TEST(frames_of_all_lengths_are_masked_and_whole)
{
    static const size_t lengths[] = {0, 1, 125, 126, 1023, 1024, 1025, 65535, 65536, 100001};
    static const unsigned char mask[4] = {1, 2, 250, 4};
    for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
        size_t length = lengths[n], head = length < 126 ? 2 : length < 65536 ? 4 : 10;
        char *data = malloc(length + 1);
        for (size_t i = 0; i < length; i++)
            data[i] = (char)(i * 7);
        adli_buf out;
        adli_buf_init(&out, 1 << 20);
        adli_ws_put(&out, ADLI_WS_BINARY, data, length, mask);
        CHECK_INT(out.length, head + 4 + length);
        CHECK_INT((unsigned char)out.data[0], 0x82);
        CHECK((unsigned char)out.data[1] & 0x80);
        bool same = true;
        for (size_t i = 0; i < length; i++)
            same &= (char)(out.data[head + 4 + i] ^ mask[i % 4]) == data[i];
        CHECK(same);
        adli_buf_fini(&out);
        free(data);
    }
}

static adl_status feed(adli_ws_reader *reader, const char *bytes, size_t count, int *opcode)
{
    const char *data;
    size_t length;
    *opcode = 0;
    adl_status status = adli_ws_feed(reader, bytes, count);
    return status == ADL_OK ? adli_ws_next(reader, opcode, &data, &length) : status;
}

TEST(messages_come_out_of_single_bytes)
{
    /* "ab" in two frames with a ping between them, then "c" */
    static const char bytes[] = "\x02\x01"
                                "a\x89\x02hi\x80\x01"
                                "b\x82\x01"
                                "c";
    adli_ws_reader reader;
    const char *data;
    size_t length;
    char seen[100] = "";
    adli_ws_init(&reader);
    for (size_t i = 0; i < sizeof bytes - 1; i++) {
        REQUIRE(adli_ws_feed(&reader, bytes + i, 1) == ADL_OK);
        for (int opcode = 1; opcode;) {
            REQUIRE(adli_ws_next(&reader, &opcode, &data, &length) == ADL_OK);
            if (opcode)
                snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%d:%.*s ", opcode,
                         (int)length, data);
        }
    }
    CHECK_STR(seen, "9:hi 2:ab 2:c ");
    adli_ws_fini(&reader);
}

TEST(what_is_no_websocket_is_refused)
{
    static const struct {
        const char *bytes;
        size_t count;
    } bad[] = {{"\x82\x81"
                "mask",
                6}, /* a server masks nothing */
               {"\xc2\x01"
                "x",
                3},                                              /* a reserved bit */
               {"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff", 10}, /* without end */
               {"\x80\x01"
                "x",
                3}, /* goes on with nothing */
               {"\x09\x01"
                "x",
                3}}; /* a control frame in parts */
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        adli_ws_reader reader;
        int opcode;
        adli_ws_init(&reader);
        CHECK(feed(&reader, bad[i].bytes, bad[i].count, &opcode) == ADL_EINVAL);
        adli_ws_fini(&reader);
    }
}

/* ---- exec ---- */

static void serve(void *user, adlt_kube_request *request)
{
    char text[200], big[70000];
    (void)user;
    memset(big, 'x', sizeof big);
    if (strstr(request->path, "command=refused")) {
        adlt_kube_answer(request, 403, "Content-Type: application/json\r\n",
                         "{\"kind\":\"Status\",\"message\":\"pods is forbidden\"}");
        return;
    }
    bool old = strstr(request->path, "command=old") != NULL;
    adlt_ws_accept(request, old ? "v4.channel.k8s.io" : "v5.channel.k8s.io");
    if (strstr(request->path, "command=cat%20me")) { /* says what it hears, until that ends */
        while (adlt_ws_read(request, text, sizeof text) > 0 && text[0] == 0)
            adlt_ws_channel(request, 1, text + 1, strlen(text + 1));
        adlt_ws_result(request, (unsigned char)text[0] == 255 && text[1] == 0 ? 0 : 9);
    } else if (!strstr(request->path, "command=breaks")) {
        adlt_ws_channel(request, 1, "one ", 4);
        adlt_ws_frame(request, 0x80 | ADLI_WS_PING, "are you there", 13);
        adlt_ws_channel(request, 2, "oops", 4);
        adlt_ws_channel(request, 1, big, sizeof big);
        bool pong = adlt_ws_read(request, text, sizeof text) == 13;
        adlt_ws_result(request, pong ? 3 : 8);
    }
    adlt_kube_hang(request);
}

typedef struct said {
    char out[80000], err[100];
    size_t out_length;
    adl_status status;
    int code;
} said;

static adlt_kube_server server;

static bool open_server(adli_kube_config *config)
{
    char text[300];
    server = (adlt_kube_server){.answer = serve};
    if (!adlt_kube_server_start(&server))
        return false;
    snprintf(text, sizeof text,
             "current-context: c\nclusters: [{name: c, cluster: {server: "
             "\"http://127.0.0.1:%d\"}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
             "users: [{name: u, user: {token: t}}]\n",
             server.port);
    return adli_kube_config_parse("c", ".", text, strlen(text), NULL, config) == ADL_OK;
}

static adl_status begin(const adli_kube_config *config, const char *word, adli_kube_exec **out)
{
    const char *const words[] = {word, NULL};
    adli_buf path;
    adli_buf_init(&path, 4096);
    adli_kube_exec_path(&path, "ns", "pod", "main", words, true, false);
    adl_status status = adli_kube_exec_open(config, path.data, 60, out);
    adli_buf_fini(&path);
    return status;
}

static void hear(adli_kube_exec *exec, said *s)
{
    bool over = false;
    while (!over && s->status == ADL_OK) {
        int channel;
        const char *data;
        size_t length;
        s->status = adli_kube_exec_next(exec, 1000, -1, &channel, &data, &length, &over);
        if (s->status == ADL_OK && channel == ADLI_EXEC_OUT &&
            s->out_length + length < sizeof s->out) {
            memcpy(s->out + s->out_length, data, length);
            s->out_length += length;
        }
        if (s->status == ADL_OK && channel == ADLI_EXEC_ERR)
            snprintf(s->err, sizeof s->err, "%.*s", (int)length, data);
    }
    if (s->status == ADL_OK)
        s->status = adli_kube_exec_result(exec, &s->code);
}

TEST(a_program_speaks_on_two_streams_and_ends)
{
    static const char *const words[] = {"new", "old"};
    adli_kube_config config;
    REQUIRE(open_server(&config));
    for (int i = 0; i < 2; i++) {
        adli_kube_exec *exec;
        said *s = calloc(1, sizeof *s);
        REQUIRE(begin(&config, words[i], &exec) == ADL_OK);
        hear(exec, s);
        CHECK_INT(s->status, ADL_OK);
        CHECK_INT(s->code, 3);
        CHECK_INT(s->out_length, 70004);
        CHECK(memcmp(s->out, "one xxx", 7) == 0);
        CHECK_STR(s->err, "oops");
        adli_kube_exec_close(exec);
        free(s);
    }
    adli_kube_config_fini(&config);
    adlt_kube_server_stop(&server);
}

TEST(a_program_hears_its_input_and_its_end)
{
    adli_kube_config config;
    adli_kube_exec *exec;
    said *s = calloc(1, sizeof *s);
    REQUIRE(open_server(&config));
    REQUIRE(begin(&config, "cat me", &exec) == ADL_OK);
    REQUIRE(adli_kube_exec_send(exec, ADLI_EXEC_IN, "hello ", 6) == ADL_OK);
    REQUIRE(adli_kube_exec_send(exec, ADLI_EXEC_IN, "there", 5) == ADL_OK);
    REQUIRE(adli_kube_exec_end_input(exec) == ADL_OK);
    hear(exec, s);
    CHECK_INT(s->status, ADL_OK);
    CHECK_INT(s->code, 0);
    CHECK_STR(s->out, "hello there");
    adli_kube_exec_close(exec);
    adli_kube_config_fini(&config);
    adlt_kube_server_stop(&server);
    free(s);
}

TEST(a_refusal_and_a_broken_connection_are_told)
{
    adli_kube_config config;
    adli_kube_exec *exec;
    REQUIRE(open_server(&config));
    CHECK(begin(&config, "refused", &exec) == ADL_EINVAL && !exec);
    CHECK(strstr(adl_error(), "pods is forbidden"));
    said *s = calloc(1, sizeof *s);
    REQUIRE(begin(&config, "breaks", &exec) == ADL_OK);
    adlt_kube_server_stop(&server);
    hear(exec, s);
    CHECK_INT(s->status, ADL_ENET);
    adli_kube_exec_close(exec);
    CHECK(begin(&config, "x", &exec) == ADL_ENET); /* nobody is there any more */
    adli_kube_config_fini(&config);
    free(s);
}

/* ---- logging in ---- */

static char folder[64];

static adl_status log_in(const char *script, double limit_s, adli_kube_config *config)
{
    char path[100], text[800];
    snprintf(folder, sizeof folder, "/tmp/adl-login-XXXXXX");
    if (!mkdtemp(folder))
        return ADL_EIO;
    snprintf(path, sizeof path, "%s/log-in", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "#!/bin/sh\n%s\n", script);
    fclose(file);
    chmod(path, 0755);
    snprintf(text, sizeof text,
             "current-context: c\nclusters: [{name: c, cluster: {server: \"https://x:1\"}}]\n"
             "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
             "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, "
             "command: ./log-in, args: [get-token, 'it''s $HOME; `x`'], installHint: get it, "
             "env: [{name: REGION, value: here}]}}}]\n");
    adl_status status = adli_kube_config_parse("c", folder, text, strlen(text), NULL, config);
    if (status == ADL_OK)
        status = adli_kube_config_login(config, limit_s);
    unlink(path);
    rmdir(folder);
    return status;
}

#define CREDENTIAL(status)                                                                         \
    "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\","       \
    "\"status\":{" status "}}'"

TEST(a_program_that_logs_in_gives_a_token_or_a_certificate)
{
    adli_kube_config config;
    REQUIRE(
        log_in("[ \"$REGION\" = here ] || exit 5\n[ \"$1 $2\" = \"get-token it's \\$HOME; "
               "\\`x\\`\" ] || exit 6\ncase $KUBERNETES_EXEC_INFO in *ExecCredential*) ;; *) exit "
               "7;; esac\n" CREDENTIAL("\"token\":\"abc\""),
               60, &config) == ADL_OK);
    CHECK_STR(config.token, "abc");
    adli_kube_config_fini(&config);
    REQUIRE(log_in(CREDENTIAL("\"clientCertificateData\":\"C\",\"clientKeyData\":\"K\""), 60,
                   &config) == ADL_OK);
    CHECK_STR(config.certificate, "C");
    CHECK_STR(config.key, "K");
    adli_kube_config_fini(&config);
}

TEST(a_program_that_does_not_log_in_is_told)
{
    static const struct {
        const char *script;
        double limit_s;
        adl_status status;
        const char *words;
    } bad[] = {
        {"exit 3", 60, ADL_EIO, "exit status 3"},
        {"echo hello", 60, ADL_EINVAL, "prints no ExecCredential"},
        {"echo '{\"kind\":\"Pod\"}'", 60, ADL_EINVAL, "prints no ExecCredential"},
        {CREDENTIAL(""), 60, ADL_EINVAL, "neither a token nor"},
        {CREDENTIAL("\"clientCertificateData\":\"C\""), 60, ADL_EINVAL, "neither a token nor"},
        {"sleep 100", 0.2, ADL_ETIMEOUT, "takes too long"},
        {"exec >&-; sleep 100", 0.2, ADL_ETIMEOUT, "takes too long"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        adli_kube_config config;
        CHECK_INT(log_in(bad[i].script, bad[i].limit_s, &config), bad[i].status);
        CHECK(strstr(adl_error(), bad[i].words));
        CHECK(strstr(adl_error(), "log-in"));
        adli_kube_config_fini(&config);
    }
}

TEST(a_program_that_is_not_there_is_told_with_its_hint)
{
    static const char text[] =
        "current-context: c\nclusters: [{name: c, cluster: {server: \"https://x:1\"}}]\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: "
        "no-such-program-here, installHint: install it like this}}}]\n";
    adli_kube_config config;
    REQUIRE(adli_kube_config_parse("c", ".", text, strlen(text), NULL, &config) == ADL_OK);
    CHECK(adli_kube_config_login(&config, 10) == ADL_EINVAL);
    CHECK(strstr(adl_error(), "no-such-program-here") &&
          strstr(adl_error(), "install it like this"));
    adli_kube_config_fini(&config);
}
