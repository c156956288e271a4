/* Machines of a run and what is told to them: lists, who is where, requests as bytes. */
#include "harness.h"

#include "launch/remote.h"

TEST(lists_of_machines)
{
    adli_hosts hosts;
    REQUIRE_OK(adli_hosts_init(&hosts, "a,me@b.example,10.0.0.3", "ssh  -p 22 -i key"));
    CHECK_INT(hosts.count, 3);
    CHECK_STR(hosts.name[0], "a");
    CHECK_STR(hosts.name[1], "me@b.example");
    CHECK_STR(hosts.name[2], "10.0.0.3");
    CHECK_STR(hosts.ssh[0], "ssh");
    CHECK_STR(hosts.ssh[4], "key");
    CHECK(!hosts.ssh[5]);
    adli_hosts_fini(&hosts);
    REQUIRE_OK(adli_hosts_init(&hosts, NULL, NULL));
    CHECK_INT(hosts.count, 0);
    CHECK_FAILS(adli_hosts_init(&hosts, "", NULL), ADL_EINVAL, "empty");
    CHECK_FAILS(adli_hosts_init(&hosts, "a,", NULL), ADL_EINVAL, "empty");
    CHECK_FAILS(adli_hosts_init(&hosts, "me@", NULL), ADL_EINVAL, "empty");
    CHECK_FAILS(adli_hosts_init(&hosts, "a,-lroot", NULL), ADL_EINVAL, "\"-lroot\"");
    CHECK_FAILS(adli_hosts_init(&hosts, "me@-o", NULL), ADL_EINVAL, "\"me@-o\"");
    CHECK_FAILS(adli_hosts_init(&hosts, "a b", NULL), ADL_EINVAL, "\"a b\"");
    CHECK_FAILS(adli_hosts_init(&hosts, "a,b,a", NULL), ADL_EINVAL, "a is there twice");
    CHECK_FAILS(adli_hosts_init(&hosts, "a", "  "), ADL_EINVAL, "which command");
}

/* The hosts of ranks 0 ..., as digits. */
static void places(const adli_hosts *hosts, int replicas, char *out)
{
    for (int rank = 0; rank < replicas; rank++)
        out[rank] = (char)('0' + adli_hosts_place(hosts, rank, replicas).host);
    out[replicas] = '\0';
}

TEST(replicas_are_dealt_out_in_blocks)
{
    adli_hosts hosts;
    char text[16];
    REQUIRE_OK(adli_hosts_init(&hosts, "a,b,c", NULL));
    places(&hosts, 2, text);
    CHECK_STR(text, "01");
    CHECK_INT(adli_hosts_place(&hosts, 0, 2).hosts, 2);
    places(&hosts, 3, text);
    CHECK_STR(text, "012");
    places(&hosts, 8, text);
    CHECK_STR(text, "00011122");
    adli_place last = adli_hosts_place(&hosts, 7, 8);
    CHECK_INT(last.local_rank, 1);
    CHECK_INT(last.local_count, 2);
    CHECK_INT(last.hosts, 3);
    CHECK_INT(adli_hosts_place(&hosts, 5, 8).local_rank, 2);
    CHECK_INT(adli_hosts_place(&hosts, 5, 8).local_count, 3);
    adli_hosts_fini(&hosts);
    REQUIRE_OK(adli_hosts_init(&hosts, NULL, NULL));
    adli_place here = adli_hosts_place(&hosts, 1, 4);
    CHECK_INT(here.local_rank, 1);
    CHECK_INT(here.local_count, 4);
    CHECK_INT(here.hosts, 1);
}

TEST(a_request_arrives_as_it_was_sent)
{
    adli_buf bytes;
    adli_request request;
    char program[] = "python3", option[] = "a b\n'c'";
    char *argv[] = {program, option, NULL};
    adli_buf_init(&bytes, ADLI_REQUEST_MAX);
    setenv("ADAPTDL_JOB_SECRET", "s=3", 1);
    setenv("ADAPTDL_TOKEN", "of a cluster", 1);
    REQUIRE_OK(adli_request_write(&bytes, 4, argv));
    char *body = strchr(bytes.data, '\n') + 1;
    long length = adli_request_length(bytes.data);
    REQUIRE(length == (long)(bytes.data + bytes.length - body));
    REQUIRE_OK(adli_request_parse(body, (size_t)length, &request));
    CHECK_INT(request.local_count, 4);
    CHECK(request.directory[0] == '/');
    bool secret = false;
    for (char **variable = request.variables; *variable; variable++) {
        secret |= strcmp(*variable, "ADAPTDL_JOB_SECRET=s=3") == 0;
        CHECK(strncmp(*variable, "ADAPTDL_", 8) == 0 || strncmp(*variable, "OMP_", 4) == 0);
        CHECK(strncmp(*variable, "ADAPTDL_TOKEN", 13) != 0);
    }
    CHECK(secret);
    CHECK_STR(request.argv[0], "python3");
    CHECK_STR(request.argv[1], "a b\n'c'");
    CHECK(!request.argv[2]);
    adli_request_fini(&request);
    adli_buf_fini(&bytes);
    unsetenv("ADAPTDL_JOB_SECRET");
    unsetenv("ADAPTDL_TOKEN");
}

TEST(what_is_no_request_is_refused)
{
    CHECK(adli_request_length("GET / HTTP/1.1\n") == -1);
    CHECK(adli_request_length(ADLI_REQUEST_MAGIC " 12") == -1);
    CHECK(adli_request_length(ADLI_REQUEST_MAGIC " -1\n") == -1);
    CHECK(adli_request_length(ADLI_REQUEST_MAGIC " 99999999999999999999\n") == -1);
    static const struct {
        const char *bytes;
        size_t length;
        const char *text;
    } cases[] = {
        {"", 0, "cut off"},
        {"1\0/\0\0sh\0", 8, "not a directory"}, /* no end of the arguments */
        {"1\0/\0\0\0", 6, "not a directory"},   /* no program */
        {"0\0/\0\0sh\0\0", 9, "\"0\" replicas"},
        {"x\0/\0\0sh\0\0", 9, "\"x\" replicas"},
        {"1\0/\0noequals\0\0sh\0\0", 18, "not a directory"},
        {"1\0/\0\0sh\0\0more\0", 14, "not a directory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char bytes[32];
        adli_request request;
        memcpy(bytes, cases[i].bytes, cases[i].length);
        CHECK_FAILS(adli_request_parse(bytes, cases[i].length, &request), ADL_EINVAL,
                    cases[i].text);
    }
}
