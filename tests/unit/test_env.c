/* The environment of a replica: defaults, every variable, and what is refused. */
#include "harness.h"

#include "adaptdl/context.h"
#include "train/env.h"

static const char *const variables[] = {
    "ADAPTDL_CHECKPOINT_PATH",
    "ADAPTDL_SHARE_PATH",
    "ADAPTDL_JOB_ID",
    "ADAPTDL_MASTER_ADDR",
    "ADAPTDL_MASTER_PORT",
    "ADAPTDL_REPLICA_RANK",
    "ADAPTDL_NUM_REPLICAS",
    "ADAPTDL_NUM_NODES",
    "ADAPTDL_NUM_RESTARTS",
    "ADAPTDL_SUPERVISOR_URL",
    "ADAPTDL_SCHED_VERSION",
    "ADAPTDL_TENSORBOARD_LOGDIR",
    "ADAPTDL_HINTS_INTERVAL",
    "ADAPTDL_CONNECT_TIMEOUT",
    "ADAPTDL_JOB_SECRET",
    "ADAPTDL_LOCAL_RANK",
    /* other launchers' */
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_NUM_NODES",
    "SLURM_STEP_NODELIST",
    "SLURM_LOCALID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
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

/* "NAME=value" each. */
static void set_all(const char *const *settings, size_t count)
{
    reset();
    for (size_t i = 0; i < count; i++)
        putenv((char *)settings[i]);
}
#define SET(...)                                                                                   \
    set_all((const char *const[]){__VA_ARGS__},                                                    \
            sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

TEST(torchrun_is_understood)
{
    adl_env env;
    SET("RANK=3", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=gpu-0",
        "MASTER_PORT=29500");
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.rank, 3);
    CHECK_INT(env.replicas, 4);
    CHECK_INT(env.local_rank, 1);
    CHECK_INT(env.nodes, 2);
    CHECK_INT(env.restarts, 0);
    CHECK_STR(env.master_addr, "gpu-0");
    CHECK_INT(env.master_port, 29500);
    /* torchrun holds the port for its own store, counts restarts and knows the machines. */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    setenv("TORCHELASTIC_RESTART_COUNT", "2", 1);
    setenv("GROUP_WORLD_SIZE", "3", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.master_port, 29501);
    CHECK_INT(env.restarts, 2);
    CHECK_INT(env.nodes, 3);
    setenv("ADAPTDL_MASTER_PORT", "4000", 1);
    setenv("ADAPTDL_MASTER_ADDR", "10.0.0.1", 1);
    setenv("ADAPTDL_NUM_NODES", "1", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.master_port, 4000);
    CHECK_STR(env.master_addr, "10.0.0.1");
    CHECK_INT(env.nodes, 1);
    reset();
}

TEST(slurm_is_understood)
{
    adl_env env;
    SET("SLURM_PROCID=2", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=2", "SLURM_LOCALID=0",
        "SLURM_STEP_NODELIST=gpu[03-04]", "SLURM_JOB_ID=77", "SLURM_STEP_ID=1",
        "SLURM_RESTART_COUNT=1");
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.rank, 2);
    CHECK_INT(env.replicas, 4);
    CHECK_INT(env.nodes, 2);
    CHECK_INT(env.local_rank, 0);
    CHECK_INT(env.restarts, 1);
    CHECK_STR(env.master_addr, "gpu03");
    int port = env.master_port;
    CHECK(port >= 20000 && port < 32000);
    setenv("SLURM_PROCID", "0", 1); /* another task of the step comes to the same port */
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.master_port, port);
    setenv("SLURM_STEP_ID", "2", 1); /* another step does not */
    REQUIRE_OK(adl_env_read(&env));
    CHECK(env.master_port != port);
    setenv("MASTER_ADDR", "login", 1);
    setenv("MASTER_PORT", "5000", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_STR(env.master_addr, "login");
    CHECK_INT(env.master_port, 5000);
    setenv("RANK", "1", 1); /* torchrun inside of a step */
    setenv("WORLD_SIZE", "3", 1);
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.rank, 1);
    CHECK_INT(env.replicas, 3);
    reset();
}

TEST(other_launchers_give_way)
{
    adl_env env;
    SET("RANK=1", "WORLD_SIZE=2", "MASTER_PORT=29500", "ADAPTDL_NUM_REPLICAS=1");
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.rank, 0);
    CHECK_INT(env.replicas, 1);
    CHECK_INT(env.master_port, 0);
    SET("RANK=1"); /* anybody's */
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.rank, 0);
    SET("SLURM_PROCID=0", "SLURM_NTASKS=4", "SLURM_JOB_ID=7"); /* sbatch's script runs once */
    REQUIRE_OK(adl_env_read(&env));
    CHECK_INT(env.replicas, 1);
    reset();
}

TEST(wrong_values_of_other_launchers_are_named)
{
    adl_env env;
    SET("RANK=2", "WORLD_SIZE=2");
    CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, "RANK=2: must be below WORLD_SIZE=2");
    SET("RANK=x", "WORLD_SIZE=2");
    CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, "RANK=x: not a whole number");
    SET("RANK=0", "WORLD_SIZE=2");
    CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, "MASTER_PORT is not set");
    SET("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=gpu[1-");
    CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, "SLURM_STEP_NODELIST: gpu[1-");
    SET("SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=none");
    CHECK_FAILS(adl_env_read(&env), ADL_EINVAL, "SLURM_STEP_NUM_TASKS=none");
    reset();
}

TEST(the_first_of_slurms_machines)
{
    static const struct {
        const char *list, *first; /* NULL: not a list */
    } cases[] = {
        {"gpu1", "gpu1"},
        {"a,b", "a"},
        {"gpu[03-05,9],cpu1", "gpu03"},
        {"rack[2,4]-node[010-012]", "rack2-node010"},
        {"n[7]", "n7"},
        {"", NULL},
        {",a", NULL},
        {"n[1-2", NULL},
        {"n1]", NULL},
        {"n[a]", NULL},
        {"n[[1]]", NULL},
    };
    char host[16];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!cases[i].first) {
            CHECK_FAILS(adli_env_first_host(cases[i].list, host, sizeof host), ADL_EINVAL,
                        "not a list");
            continue;
        }
        REQUIRE_OK(adli_env_first_host(cases[i].list, host, sizeof host));
        CHECK_STR(host, cases[i].first);
    }
    CHECK_FAILS(adli_env_first_host("a-name-of-17-byte", host, sizeof host), ADL_EINVAL,
                "15 bytes");
}
