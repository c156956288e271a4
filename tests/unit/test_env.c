/* The environment of a replica: defaults, every variable, and what is refused. */
#include "harness.h"

#include "adaptdl/context.h"

static const char *const variables[] = {
    "ADAPTDL_CHECKPOINT_PATH", "ADAPTDL_SHARE_PATH",      "ADAPTDL_JOB_ID",
    "ADAPTDL_MASTER_ADDR",     "ADAPTDL_MASTER_PORT",     "ADAPTDL_REPLICA_RANK",
    "ADAPTDL_NUM_REPLICAS",    "ADAPTDL_NUM_NODES",       "ADAPTDL_NUM_RESTARTS",
    "ADAPTDL_SUPERVISOR_URL",  "ADAPTDL_SCHED_VERSION",   "ADAPTDL_TENSORBOARD_LOGDIR",
    "ADAPTDL_HINTS_INTERVAL",  "ADAPTDL_CONNECT_TIMEOUT", "ADAPTDL_JOB_SECRET",
};

static void reset(void)
{
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
}

TEST(nothing_set_is_one_process_without_checkpoints)
{
    adl_env env;
    reset();
    REQUIRE_OK(adl_env_read(&env));
    CHECK(!env.checkpoint_path && !env.share_path && !env.job_id && !env.supervisor_url);
    CHECK(!env.sched_version && !env.tensorboard_logdir && !env.job_secret);
    CHECK_STR(env.master_addr, "0.0.0.0");
    CHECK_INT(env.master_port, 0);
    CHECK_INT(env.rank, 0);
    CHECK_INT(env.replicas, 1);
    CHECK_INT(env.nodes, 1);
    CHECK_INT(env.restarts, 0);
}

TEST(every_variable_is_read)
{
    adl_env env;
    reset();
    setenv("ADAPTDL_CHECKPOINT_PATH", "/ckpt", 1);
    setenv("ADAPTDL_SHARE_PATH", "/share", 1);
    setenv("ADAPTDL_JOB_ID", "alone", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_STR(env.job_id, "alone");
    setenv("ADAPTDL_JOB_ID", "team/job-1", 1);
    setenv("ADAPTDL_MASTER_ADDR", "10.0.0.7", 1);
    setenv("ADAPTDL_MASTER_PORT", "47000", 1);
    setenv("ADAPTDL_REPLICA_RANK", "3", 1);
    setenv("ADAPTDL_NUM_REPLICAS", "4", 1);
    setenv("ADAPTDL_NUM_RESTARTS", "5", 1);
    setenv("ADAPTDL_SUPERVISOR_URL", "http://sched:8080", 1);
    setenv("ADAPTDL_SCHED_VERSION", adl_version(), 1);
    setenv("ADAPTDL_TENSORBOARD_LOGDIR", "/tb", 1);
    setenv("ADAPTDL_JOB_SECRET", "s3cret", 1);
    setenv("ADAPTDL_HINTS_INTERVAL", "2", 1);
    setenv("ADAPTDL_CONNECT_TIMEOUT", "60", 1);
    setenv("ADAPTDL_CHECKPOINT_INTERVAL", "0", 1);
    setenv("ADAPTDL_PEER_TIMEOUT", "9", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_STR(env.checkpoint_path, "/ckpt");
    CHECK_STR(env.share_path, "/share");
    CHECK_STR(env.job_id, "team/job-1");
    CHECK_STR(env.master_addr, "10.0.0.7");
    CHECK_INT(env.master_port, 47000);
    CHECK_INT(env.rank, 3);
    CHECK_INT(env.replicas, 4);
    CHECK_INT(env.nodes, 4); /* one per replica unless said otherwise */
    CHECK_INT(env.restarts, 5);
    CHECK_STR(env.supervisor_url, "http://sched:8080");
    CHECK_STR(env.tensorboard_logdir, "/tb");
    CHECK_STR(env.job_secret, "s3cret");
    CHECK_INT(env.hints_interval_s, 2);
    CHECK_INT(env.connect_timeout_s, 60);
    CHECK_INT(env.checkpoint_interval_s, -1);
    CHECK_INT(env.peer_timeout_s, 9);
    setenv("ADAPTDL_CHECKPOINT_INTERVAL", "7", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.checkpoint_interval_s, 7);
    unsetenv("ADAPTDL_CHECKPOINT_INTERVAL");
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.checkpoint_interval_s, 0);
    setenv("ADAPTDL_NUM_NODES", "2", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.nodes, 2);
    setenv("ADAPTDL_CHECKPOINT_PATH", "", 1); /* empty counts as not set */
    REQUIRE_OK(adl_env_read(&env));
    CHECK(!env.checkpoint_path);
}

TEST(a_malformed_value_is_named)
{
    static const struct {
        const char *variable, *value, *text;
    } cases[] = {
        {"ADAPTDL_MASTER_PORT", "http", "ADAPTDL_MASTER_PORT=http"},
        {"ADAPTDL_MASTER_PORT", "70000", "ADAPTDL_MASTER_PORT=70000: must be from 0 to 65535"},
        {"ADAPTDL_MASTER_PORT", "-1", "ADAPTDL_MASTER_PORT=-1"},
        {"ADAPTDL_MASTER_PORT", "80 ", "ADAPTDL_MASTER_PORT=80 "},
        {"ADAPTDL_MASTER_PORT", "99999999999999999999", "ADAPTDL_MASTER_PORT=9999"},
        {"ADAPTDL_NUM_REPLICAS", "0", "ADAPTDL_NUM_REPLICAS=0"},
        {"ADAPTDL_NUM_REPLICAS", "two", "ADAPTDL_NUM_REPLICAS=two"},
        {"ADAPTDL_NUM_REPLICAS", "2", "ADAPTDL_MASTER_PORT is not set"},
        {"ADAPTDL_REPLICA_RANK", "1", "ADAPTDL_REPLICA_RANK=1: must be below"},
        {"ADAPTDL_REPLICA_RANK", "-1", "ADAPTDL_REPLICA_RANK=-1"},
        {"ADAPTDL_NUM_NODES", "2", "ADAPTDL_NUM_NODES=2"},
        {"ADAPTDL_NUM_RESTARTS", "once", "ADAPTDL_NUM_RESTARTS=once"},
        {"ADAPTDL_HINTS_INTERVAL", "0", "ADAPTDL_HINTS_INTERVAL=0"},
        {"ADAPTDL_CONNECT_TIMEOUT", "soon", "ADAPTDL_CONNECT_TIMEOUT=soon"},
        {"ADAPTDL_JOB_ID", "/name", "ADAPTDL_JOB_ID=/name"},
        {"ADAPTDL_JOB_ID", "a/b/c", "ADAPTDL_JOB_ID=a/b/c"},
        {"ADAPTDL_JOB_ID", "a/b?c", "ADAPTDL_JOB_ID=a/b?c"},
        {"ADAPTDL_SUPERVISOR_URL", "sched:80", "ADAPTDL_SUPERVISOR_URL=sched:80"},
        {"ADAPTDL_SUPERVISOR_URL", "http://sched:80", "ADAPTDL_JOB_ID is not"},
        {"ADAPTDL_SCHED_VERSION", "latest", "ADAPTDL_SCHED_VERSION=latest"},
        {"ADAPTDL_SCHED_VERSION", "4711.0.0", "major version 4711"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        adl_env env;
        adl_context *ctx = NULL;
        reset();
        setenv(cases[i].variable, cases[i].value, 1);
        CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, cases[i].text);
        CHECK_FAILS(adl_init(NULL, &ctx), ADL_EINVAL, cases[i].text);
        CHECK(ctx == NULL);
    }
    reset();
}

TEST(an_environment_given_directly_is_checked_too)
{
    adl_env env = ADL_ENV_INIT;
    adl_options options = ADL_OPTIONS_INIT;
    adl_context *ctx;
    options.env = &env;
    env.rank = 1;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_EINVAL, "ADAPTDL_REPLICA_RANK=1");
    env = (adl_env)ADL_ENV_INIT;
    env.nodes = 2;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_EINVAL, "ADAPTDL_NUM_NODES=2");
    env = (adl_env)ADL_ENV_INIT;
    env.restarts = -1;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_EINVAL, "ADAPTDL_NUM_RESTARTS=-1");
    env = (adl_env)ADL_ENV_INIT;
    options.checkpoint_keep = 0;
    CHECK_FAILS(adl_init(&options, &ctx), ADL_EINVAL, "checkpoint_keep");
    options = (adl_options){0};
    CHECK_FAILS(adl_init(&options, &ctx), ADL_EINVAL, "size");
}
