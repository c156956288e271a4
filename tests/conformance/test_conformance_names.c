/* Names and what becomes of them: what holds for every backend, also for one that runs no programs. Members only have
 * to be ready until they are asked to stop. */
#include "conformance/suite.h"
#include "harness.h"

#include <poll.h>

TEST(nodes_are_as_declared)
{
    const adli_backend_node *nodes;
    int count;
    OPEN();
    CHECK_OK(backend->ops->nodes(backend->self, &nodes, &count));
    CHECK_INT(count, 2);
    CHECK_STR(nodes[0].name, "a");
    CHECK_STR(nodes[1].name, "b");
    CHECK(nodes[0].ready && nodes[1].ready && nodes[0].address[0]);
    CHECK_STR(nodes[0].resource_names[0], "pods");
    CHECK_INT(nodes[0].resource_amounts[0], 4);
    CLOSE();
}

TEST(bad_names_are_refused)
{
    static const char *const uids[] = {
        "",     ".",        "..",
        "../x", "a/b",      "a b",
        "a\n",  "\xc3\xa4", "0123456789012345678901234567890123456789012345678901234567890123"};
    static const adli_member_start nowhere[] = {{0, 0, "a"}, {1, 1, "nowhere"}},
                                   twice[] = {{1, 0, "a"}, {1, 1, "b"}}, beyond[] = {{0, 1, "a"}};
    adli_start spec;
    adli_member_view view;
    int count;
    OPEN();
    for (size_t i = 0; i < sizeof uids / sizeof uids[0]; i++) {
        adlt_spec("good", 1, 1, "exit 0", &spec);
        spec.uid = uids[i];
        CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "uid");
        CHECK(backend->ops->observe(backend->self, uids[i], 1, &view, 1, &count) != ADL_OK);
        backend->ops->stop(backend->self, uids[i], 1, ADLI_ALL_MEMBERS, true);
        backend->ops->forget(backend->self, uids[i], 1);
        backend->ops->remove(backend->self, uids[i]);
    }
    CHECK_FAILS(adlt_start(site, "good", 0, 1, ""), ADL_EINVAL, "group");
    CHECK_FAILS(adlt_start(site, "good", 1, 0, ""), ADL_EINVAL, "0 replicas");
    adlt_spec("good", 1, 2, "exit 0", &spec);
    spec.members = nowhere;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_ENOENT, "nowhere");
    spec.members = twice;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "members: 1");
    adlt_spec("good", 1, 1, "exit 0", &spec);
    spec.members = beyond;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "rank 1");
    adlt_spec("good", 1, 1, "exit 0", &spec);
    spec.count = 0;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "members: 0");
    adlt_spec("good", 1, 1, "exit 0", &spec);
    spec.size = 0;
    CHECK_FAILS(backend->ops->start(backend->self, &spec), ADL_EINVAL, "size");
    CHECK_FAILS(backend->ops->observe(backend->self, "good", 1, &view, 1, &count), ADL_ENOENT,
                "good");
    CHECK_FAILS(backend->ops->scale(backend->self, -1), ADL_EINVAL, "-1");
    CHECK_OK(backend->ops->scale(backend->self, 7));
    CLOSE();
}

TEST(members_are_known_by_their_names)
{
    adli_member_view views[3];
    int count;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK_OK(adlt_start(site, "job", 1, 2, "sleep 1000")); /* again: nothing */
    CHECK_OK(adlt_join(site, "job", 1, 4, "a", 2, 3, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, 4, ADLI_MEMBER_READY));
    CHECK_OK(backend->ops->observe(backend->self, "job", 1, views, 3, &count));
    REQUIRE(count == 3);
    CHECK(views[0].member == 0 && views[1].member == 1 && views[2].member == 4);
    CHECK_INT(views[2].exit_code, -1);
    CHECK(views[2].address[0] != '\0');
    CHECK_OK(backend->ops->observe(backend->self, "job", 1, views, 1, &count)); /* little room */
    CHECK_INT(count, 3);
    CHECK(adlt_gone(site, "job", 2) && adlt_gone(site, "other", 1));
    CLOSE();
}

TEST(one_is_stopped_or_all_are)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 3, "exec sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    backend->ops->stop(backend->self, "job", 1, 1, false);
    CHECK(adlt_wait(site, "job", 1, 1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 1).exit_code, 143);
    CHECK_INT(adlt_view(site, "job", 1, 1).cause, ADLI_CAUSE_NONE);
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_READY);
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, true);
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_INTERRUPTED));
    CHECK_INT(adlt_view(site, "job", 1, 2).cause, ADLI_CAUSE_KILLED);
    CHECK_INT(adlt_view(site, "job", 1, 2).exit_code, 137);
    CHECK_INT(adlt_view(site, "job", 1, 1).exit_code, 143); /* it had ended before */
    CHECK(adlt_view(site, "job", 1, 2).ended_s > 0);
    CHECK_OK(adlt_start(site, "job", 1, 3, "exec sleep 1000")); /* never again */
    CHECK_INT(adlt_view(site, "job", 1, 0).state, ADLI_MEMBER_INTERRUPTED);
    backend->ops->stop(backend->self, "job", 9, ADLI_ALL_MEMBERS, false); /* nobody */
    CLOSE();
}

static void count_group(void *user, const char *uid, int group)
{
    (void)uid;
    *(int *)user += group;
}

TEST(forgotten_names_are_used_up)
{
    int sum = 0;
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 2, "sleep 1000"));
    CHECK_OK(adlt_start(site, "job", 20, 1, "sleep 1000"));
    CHECK_OK(adlt_start(site, "two", 300, 1, "sleep 1000"));
    backend->ops->list(backend->self, count_group, &sum);
    CHECK_INT(sum, 321);
    backend->ops->forget(backend->self, "job", 1);
    CHECK(adlt_gone(site, "job", 1));
    CHECK_FAILS(adlt_start(site, "job", 1, 2, "sleep 1000"), ADL_ESTATE, "over");
    backend->ops->forget(backend->self, "job", 7);
    backend->ops->forget(backend->self, "nobody", 1);
    sum = 0;
    backend->ops->list(backend->self, count_group, &sum);
    CHECK_INT(sum, 320);
    backend->ops->remove(backend->self, "job");
    CHECK(adlt_gone(site, "job", 20));
    CHECK(adlt_wait(site, "two", 300, -1, ADLI_MEMBER_READY));
    CLOSE();
}

static int quiet_after_drain(const adli_backend *backend)
{
    struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
    for (int i = 0; i < 20; i++) { /* a slow poll may fall between the two lines */
        backend->ops->drain_events(backend->self);
        if (poll(&wait, 1, 0) == 0)
            return 1;
    }
    return 0;
}

TEST(the_event_descriptor_is_quiet_then_not)
{
    OPEN();
    CHECK_OK(adlt_start(site, "job", 1, 1, "sleep 1000"));
    CHECK(adlt_wait(site, "job", 1, -1, ADLI_MEMBER_READY));
    CHECK(quiet_after_drain(backend));
    backend->ops->stop(backend->self, "job", 1, ADLI_ALL_MEMBERS, true);
    struct pollfd wait = {.fd = backend->ops->event_fd(backend->self), .events = POLLIN};
    CHECK_INT(poll(&wait, 1, 30000), 1);
    CHECK(adlt_wait(site, "job", 1, -1, -1));
    CLOSE();
}
