/* Lists in pages, with filters and fields, and the end of many jobs at once. */
#include "core_world.h"

static json_t *list(world *w, adli_list_query query)
{
    json_t *root = NULL;
    adli_buf_clear(&w->out);
    if (adli_core_jobs(w->core, &query, &w->out) != ADL_OK ||
        adli_json_parse(w->out.data, w->out.length, &root) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    return root;
}

static size_t count_of(const json_t *page)
{
    return json_array_size(json_object_get(page, "items"));
}

static const char *name_at(const json_t *page, size_t i)
{
    const json_t *job = json_array_get(json_object_get(page, "items"), i);
    return json_string_value(json_object_get(job, "name"));
}

static void submit_many(world *w, int count)
{
    char name[32];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "job-%d", i);
        CHECK_OK(submit(w, name, ""));
    }
    step(w, 0);
    step(w, 1);
}

/* Page by page each job comes once, in its order, though some go and come meanwhile; more than are written under one lock. */
TEST(pages_together_are_the_list)
{
    enum { JOBS = 300, PAGE = 70 };
    world w;
    bool seen[JOBS] = {false};
    char name[32];
    REQUIRE_OK(open_world(&w, 1, 2));
    submit_many(&w, JOBS);
    adli_list_query query = {.limit = PAGE, .fields = "name"};
    for (int pages = 0; pages < 10; pages++) {
        json_t *page = list(&w, query);
        for (size_t i = 0; i < count_of(page); i++) {
            int number = atoi(name_at(page, i) + 4);
            CHECK(!seen[number]);
            seen[number] = true;
        }
        const char *next = json_string_value(json_object_get(page, "continue"));
        CHECK((next != NULL) == (count_of(page) == PAGE));
        if (next)
            REQUIRE_OK(adli_list_continue(w.core, next, &query.after));
        json_decref(page);
        if (!next)
            break;
        snprintf(name, sizeof name, "job-%d", 10 + pages); /* one that was told already goes */
        REQUIRE_OK(adli_core_delete(w.core, "default", name, &w.out));
        step(&w, 1);
        step(&w, 1);
    }
    for (int i = 0; i < JOBS; i++)
        CHECK(seen[i]);
    close_world(&w);
}

TEST(a_list_is_filtered_and_has_the_fields_that_were_asked_for)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    w.fake->auto_ready = true;
    submit_many(&w, 5);
    json_t *page = list(&w, (adli_list_query){.phases = 1u << ADL_PENDING, .fields = "name,phase"});
    CHECK_INT((int)count_of(page), 3);
    CHECK_INT((int)json_object_size(json_array_get(json_object_get(page, "items"), 0)), 2);
    CHECK_STR(name_at(page, 0), "job-2");
    json_decref(page);
    page = list(&w, (adli_list_query){.ns = "elsewhere"});
    CHECK_INT((int)count_of(page), 0);
    json_decref(page);
    REQUIRE_OK(submit_text(&w, "apiVersion: adaptdl.petuum.com/v1\nkind: AdaptDLJob\n"
                               "metadata: {name: marked, labels: {team: vision}}\nspec: {template: "
                               "{spec: {containers: [{name: main, command: [sleep, '1']}]}}}\n"));
    page = list(&w, (adli_list_query){.label = "team=vision"});
    CHECK_INT((int)count_of(page), 1);
    json_decref(page);
    page = list(&w, (adli_list_query){.label = "team=sound"});
    CHECK_INT((int)count_of(page), 0);
    json_decref(page);
    int64_t after;
    CHECK_FAILS(adli_list_continue(w.core, "what", &after), ADL_EINVAL, "continue=what");
    CHECK_FAILS(adli_list_continue(w.core, "1-5", &after), ADL_ESTATE, "begin anew");
    close_world(&w);
}

/* What was kept as text is written again when the job changes. */
TEST(a_list_shows_what_changed)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    submit_many(&w, 3);
    json_decref(list(&w, (adli_list_query){0}));
    CHECK(w.core->visits >= 0);
    REQUIRE_OK(adli_core_ask(w.core, "default", "job-2", ADLI_ASKED_CANCEL, &w.out));
    step(&w, 1);
    step(&w, 1);
    json_t *page = list(&w, (adli_list_query){.phases = 1u << ADL_FAILED});
    CHECK_INT((int)count_of(page), 1);
    const json_t *job = json_array_get(json_object_get(page, "items"), 0);
    CHECK_STR(json_string_value(json_object_get(job, "phase")), "Failed");
    json_decref(page);
    /* a report to one that waits again */
    REQUIRE_OK(adli_core_hints(w.core, "default", "job-1", good_hints, strlen(good_hints)));
    page = list(&w, (adli_list_query){.phases = 1u << ADL_PENDING});
    job = json_array_get(json_object_get(page, "items"), 0);
    CHECK(json_is_object(json_object_get(job, "train")));
    json_decref(page);
    close_world(&w);
}

static adli_shared *all(world *w)
{
    adli_shared *text = NULL;
    if (adli_core_all_jobs(w->core, &text) != ADL_OK)
        ADLT_FAIL("%s", adl_error());
    return text;
}

/* Is the list of all the text that somebody has already? */
static bool is_same(world *w, const adli_shared *before)
{
    adli_shared *now = all(w);
    bool same = now == before;
    adli_shared_drop(now);
    return same;
}

/* It must be what a list that is written now would be. */
static void check_all(world *w)
{
    adli_shared *text = all(w);
    adli_buf_clear(&w->out);
    REQUIRE_OK(adli_core_jobs(w->core, &(adli_list_query){0}, &w->out));
    CHECK_STR(text->data, w->out.data);
    adli_shared_drop(text);
}

/* Nobody looks at ten thousand jobs that wait for each who lists them. */
TEST(the_whole_list_is_written_when_something_changed)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    w.fake->auto_ready = w.fake->obedient = true;
    REQUIRE_OK(adli_core_drain_all(w.core, true, &w.out));
    submit_many(&w, 3);
    adli_shared *before = all(&w);
    int64_t looks = w.core->looks;
    w.now_s += 0.9; /* nothing runs: nothing goes on by itself */
    CHECK(is_same(&w, before));
    CHECK_INT((int)(w.core->looks - looks), 0);
    CHECK(before->print != 0);
    /* each of these is seen at once, by whoever changed it as well; the text is there while somebody has it */
    REQUIRE_OK(adli_core_hints(w.core, "default", "job-1", good_hints, strlen(good_hints)));
    CHECK(!is_same(&w, before));
    check_all(&w);
    REQUIRE_OK(adli_core_pin(w.core, "default", "job-2", 1, &w.out));
    check_all(&w);
    REQUIRE_OK(adli_core_ask(w.core, "default", "job-0", ADLI_ASKED_SUSPEND, &w.out));
    check_all(&w);
    step(&w, 1);
    check_all(&w);
    REQUIRE_OK(submit(&w, "job-3", ""));
    check_all(&w);
    REQUIRE_OK(adli_core_delete(w.core, "default", "job-3", &w.out));
    check_all(&w);
    step(&w, 1);
    step(&w, 1);
    check_all(&w);
    CHECK(strstr(before->data, "\"job-2\"") != NULL);
    adli_shared_drop(before);
    close_world(&w);
}

/* Device time goes on by itself: what runs is written again after a while, though nobody says a word. */
TEST(the_whole_list_follows_what_runs)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    w.fake->auto_ready = true;
    submit_many(&w, 2);
    step(&w, 1);
    adli_shared *before = all(&w);
    CHECK(is_same(&w, before));
    w.now_s += 1;
    CHECK(!is_same(&w, before));
    check_all(&w);
    adli_shared_drop(before);
    close_world(&w);
}

/* Of a job that waits, too. */
TEST(a_list_shows_a_pin_at_once)
{
    world w;
    REQUIRE_OK(open_world(&w, 1, 1));
    submit_many(&w, 2);
    json_decref(list(&w, (adli_list_query){0}));
    REQUIRE_OK(adli_core_pin(w.core, "default", "job-1", 1, &w.out));
    json_t *page = list(&w, (adli_list_query){.fields = "pinned"});
    const json_t *job = json_array_get(json_object_get(page, "items"), 1);
    CHECK_INT((int)json_integer_value(json_object_get(job, "pinned")), 1);
    json_decref(page);
    close_world(&w);
}

TEST(many_jobs_go_at_once)
{
    enum { JOBS = 600 };
    world w;
    REQUIRE_OK(open_world(&w, 1, 2));
    w.fake->auto_ready = w.fake->obedient = true;
    submit_many(&w, JOBS);
    adli_buf_clear(&w.out);
    REQUIRE_OK(adli_core_delete_jobs(
        w.core, &(adli_list_query){.ns = "default", .phases = 1u << ADL_PENDING}, &w.out));
    CHECK(strstr(w.out.data, "\"default/job-599\"") && !strstr(w.out.data, "\"default/job-0\""));
    int64_t commits = adli_store_look(w.core->store).commits;
    for (int i = 0; i < 5; i++)
        step(&w, 1);
    commits = adli_store_look(w.core->store).commits - commits;
    CHECK(commits <= 4); /* each waits for the disk: not one for every few jobs */
    json_t *page = list(&w, (adli_list_query){0});
    CHECK_INT((int)count_of(page), 2);
    json_decref(page);
    REQUIRE_OK(reopen(&w)); /* on disk, too */
    page = list(&w, (adli_list_query){0});
    CHECK_INT((int)count_of(page), 2);
    json_decref(page);
    close_world(&w);
}
