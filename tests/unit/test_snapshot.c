/* Snapshots as JSON: written, read and decided again they give the same decision, bit for bit. */
#include "harness.h"

#include "adaptdl/snapshot.h"
#include "snapshots.h"

enum { WORLDS = 300 };

/* Everything of a decision, as text without the loss of a bit. */
static char *decide(adl_policy *policy, const adl_snapshot *snapshot)
{
    adl_decision decision = {0};
    char *text = NULL;
    CHECK_OK(adl_policy_decide(policy, snapshot, &decision));
    CHECK_OK(adl_decision_write(snapshot, &decision, &text));
    adl_decision_fini(&decision);
    return text;
}

/* Some nodes are of other types, some are drained. */
static void vary(adlt_world *world, uint64_t seed)
{
    static const char *const types[] = {"", "a100", "t4 \"big\""};
    adli_rng rng;
    adli_rng_init(&rng, seed);
    for (int n = 0; n < world->snapshot.node_count; n++) {
        world->nodes[n].device_type = types[adli_rng_below(&rng, 3)];
        if (adli_rng_below(&rng, 4) == 0)
            world->nodes[n].drained = world->nodes[n].capacity;
    }
    world->snapshot.shared_models = adli_rng_below(&rng, 2);
}

/* Some jobs change their size while they run. */
static void let_change(adlt_world *world, uint64_t seed)
{
    adli_rng rng;
    adli_rng_init(&rng, seed);
    for (int j = 0; j < world->snapshot.job_count; j++)
        world->jobs[j].resize_cost_s = adli_rng_below(&rng, 2) ? adlt_between(&rng, 0.01, 5) : 0;
}

TEST(what_is_written_and_read_is_decided_alike)
{
    const char *name;
    int jobs = 0;
    for (uint64_t seed = 1; seed <= WORLDS; seed++) {
        adlt_world world;
        if (seed % 2) {
            adlt_world_random_types(&world, seed, 12, 16);
        } else {
            adlt_world_random(&world, seed, 12, 16);
            vary(&world, seed);
        }
        let_change(&world, seed);
        jobs += world.snapshot.job_count;
        for (int p = 0; (name = adl_policy_list(p, NULL)); p++) {
            if (strcmp(name, "pollux") == 0 && seed % 25)
                continue; /* a search takes its time */
            adl_policy *policy, *again;
            adl_record *record;
            char *text, *second;
            REQUIRE_OK(adl_policy_new(name, &policy));
            adl_policy_parameter parameter;
            if (adl_policy_get(policy, 0, &parameter))
                REQUIRE_OK(adl_policy_set(policy, parameter.name, parameter.high));
            if (strcmp(name, "sia") == 0) /* as fast here as on clusters of equal jobs */
                REQUIRE_OK(adl_policy_set(policy, "states", 100));
            REQUIRE_OK(adl_snapshot_write(&world.snapshot, policy, NULL, &text));
            REQUIRE_OK(adl_record_parse(text, strlen(text), &record));
            REQUIRE_OK(adl_record_policy(record, NULL, &again));
            CHECK_STR(adl_policy_name(again), name);
            CHECK(!adl_record_decided(record));
            REQUIRE_OK(adl_snapshot_write(adl_record_snapshot(record), again, NULL, &second));
            CHECK_STR(second, text);
            char *then = decide(policy, &world.snapshot);
            char *now = decide(again, adl_record_snapshot(record));
            CHECK_STR(now, then);
            free(then);
            free(now);
            free(text);
            free(second);
            adl_record_free(record);
            adl_policy_free(policy);
            adl_policy_free(again);
        }
        adlt_world_fini(&world);
    }
    printf("# %d worlds with %d jobs\n", WORLDS, jobs);
}

TEST(a_record_knows_what_was_decided)
{
    adlt_world world;
    adl_policy *policy;
    adl_decision decision = {0};
    adl_record *record;
    char *text, *answer;
    int seed = 1;
    for (adlt_world_random(&world, 1, 12, 16); world.snapshot.job_count < 4;) {
        adlt_world_fini(&world);
        adlt_world_random(&world, (uint64_t)++seed, 12, 16);
    }
    REQUIRE_OK(adl_policy_new("rank", &policy));
    REQUIRE_OK(adl_policy_decide(policy, &world.snapshot, &decision));
    REQUIRE_OK(adl_snapshot_write(&world.snapshot, policy, &decision, &text));
    REQUIRE_OK(adl_record_parse(text, strlen(text), &record));
    CHECK(adl_record_decided(record));
    CHECK_INT(adl_record_difference(record, &decision), -1);
    decision.jobs[2].replicas += 1; /* of another one's storage, but not the same */
    CHECK_INT(adl_record_difference(record, &decision), 2);
    REQUIRE_OK(adl_decide_text(NULL, text, strlen(text), &answer));
    CHECK(strncmp(answer, "{\"desiredNodes\":", 16) == 0);
    CHECK(strstr(text, answer) != NULL); /* the very words of the decision in the record */
    free(answer);
    free(text);
    adl_record_free(record);
    adl_decision_fini(&decision);
    adl_policy_free(policy);
    adlt_world_fini(&world);
}

static adl_status parse(const char *text)
{
    adl_record *record = NULL;
    adl_status status = adl_record_parse(text, strlen(text), &record);
    CHECK((status == ADL_OK) == (record != NULL));
    adl_record_free(record);
    return status;
}

#define HEAD "{\"version\":1,\"resources\":[\"gpu\"],\"nodes\":[{\"name\":\"a\",\"capacity\":[4]}]"
#define JOB  "\"name\":\"j\",\"request\":[1],\"maxReplicas\":4"

#define MODEL                                                                                      \
    "{\"perfParams\":{\"alpha_c\":1,\"beta_c\":0.001,\"alpha_n\":0.01,\"beta_n\":0.01,"            \
    "\"alpha_r\":0.01,\"beta_r\":0.01,\"gamma\":1},\"gradParams\":{\"norm\":0.01,\"var\":1},"      \
    "\"initBatchSize\":8,\"maxBatchSize\":512"

/* A single replica that grows is written so, in a version that older programs refuse; all else stays as it was. */
TEST(whether_a_single_replica_grows_is_kept)
{
    double speedups[2];
    for (int grows = 0; grows < 2; grows++) {
        adl_record *record;
        adl_type_model on;
        char text[1024], *again;
        snprintf(text, sizeof text,
                 "%s,\"jobs\":[{%s,\"model\":{\"maxReplicas\":4,\"types\":[%s%s}]}}]}", HEAD, JOB,
                 MODEL, grows ? ",\"loneReplicaGrows\":true" : "");
        REQUIRE_OK(adl_record_parse(text, strlen(text), &record));
        REQUIRE_OK(adl_snapshot_write(adl_record_snapshot(record), NULL, NULL, &again));
        CHECK((strstr(again, "\"loneReplicaGrows\":true") != NULL) == grows);
        CHECK((strstr(again, "\"version\":3") != NULL) == grows);
        CHECK((strstr(again, "\"version\":1") != NULL) == !grows);
        adl_record_free(record);
        REQUIRE_OK(adl_record_parse(again, strlen(again), &record));
        adl_speedup *job = adl_record_snapshot(record)->jobs[0].model;
        REQUIRE(job && adl_speedup_type(job, 0, &on));
        CHECK(on.limits->lone_grows == grows);
        speedups[grows] = adl_speedup_get(job, adl_shape_of(1, 2));
        adl_record_free(record);
        free(again);
    }
    CHECK(speedups[0] > 2.5 && speedups[1] < 2.05);
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"model\":{\"maxReplicas\":4,\"types\":[" MODEL
                           ",\"loneReplicaGrows\":1}]}}]}"),
                ADL_EINVAL, "loneReplicaGrows");
}

TEST(mistakes_are_named)
{
    CHECK_OK(parse(HEAD ",\"jobs\":[{" JOB "}],\"x-note\":\"mine\"}"));
    CHECK_FAILS(parse("[]"), ADL_EINVAL, "object");
    CHECK_FAILS(parse("{}"), ADL_EINVAL, "version");
    CHECK_FAILS(parse("{\"version\":4}"), ADL_EINVAL, "of version 4");
    CHECK_FAILS(parse("{\"version\":1}"), ADL_EINVAL, "resources");
    CHECK_FAILS(parse(HEAD ",\"colour\":1}"), ADL_EINVAL, "\"colour\" is not known");
    CHECK_FAILS(parse(HEAD ",\"seed\":7}"), ADL_EINVAL, "seed");
    CHECK_FAILS(parse(HEAD ",\"seed\":\"-7\"}"), ADL_EINVAL, "seed");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{\"name\":\"j\"}]}"), ADL_EINVAL, "jobs[0]");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"speed\":1}]}"), ADL_EINVAL, "\"speed\"");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"allocation\":[1]}]}"), ADL_EINVAL, "no index");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"allocation\":[0,0,0,0,0]}]}"), ADL_EINVAL,
                "more gpu than it has");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"model\":{\"maxReplicas\":2,\"types\":[{"
                           "\"perfParams\":{\"alpha_c\":1}}]}}]}"),
                ADL_EINVAL, "perfParams");
    CHECK_FAILS(parse(HEAD ",\"jobs\":[{" JOB ",\"model\":{\"maxReplicas\":2,\"types\":[]}}]}"),
                ADL_EINVAL, "types");
    char *answer;
    CHECK_FAILS(adl_decide_text(NULL, "x", 1, &answer), ADL_EINVAL, "snapshot");
    const char *unknown = HEAD ",\"policy\":\"chance\",\"jobs\":[{" JOB "}]}";
    CHECK_FAILS(adl_decide_text(NULL, unknown, strlen(unknown), &answer), ADL_EINVAL, "chance");
}

TEST(no_memory)
{
    const char *text =
        HEAD ",\"templateNode\":{\"name\":\"t\",\"capacity\":[8]},\"jobs\":[{" JOB
             ",\"allocation\":[0],\"stepTimes\":[1,0.5],\"model\":{\"maxReplicas\":4,"
             "\"types\":[{\"perfParams\":{\"alpha_c\":1,\"beta_c\":1,\"alpha_n\":1,"
             "\"beta_n\":1,\"alpha_r\":1,\"beta_r\":1,\"gamma\":1},\"gradParams\":"
             "{\"norm\":1,\"var\":1},\"initBatchSize\":8,\"profile\":[{\"nodes\":1,"
             "\"replicas\":1,\"localBsz\":8,\"accumTime\":1,\"optimTime\":1}]}]}}]}";
    REQUIRE_OK(parse(text));
    int failed = 0;
    for (;; failed++) {
        adli_mem_fail_at(failed + 1);
        adl_status status = parse(text);
        adli_mem_fail_at(0);
        if (status == ADL_OK)
            break;
        CHECK_INT(status, ADL_ENOMEM);
    }
    CHECK(failed >= 6);
}
