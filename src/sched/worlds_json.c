/* Worlds as JSON, for the store of a scheduler: everything that was observed, said and decided, so that one that is
 * killed between any two steps goes on with the next. What the owner has still to do (start, kill) is in it, too: doing
 * it twice is harmless. */
#include "sched/worlds.h"

#include "base/json_write.h"
#include "base/mem.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = 65536 };

/* Flags of a member, as one number. */
enum {
    FLAG_ABLE = 1,
    FLAG_READY = 2,
    FLAG_LOST = 4,
    FLAG_NAMED = 8,
    FLAG_TOLD = 16,
    FLAG_UNWANTED = 32,
    FLAG_START = 64,
    FLAG_KILL = 128,
};

static int flags_of(const adli_member *one)
{
    return one->able * FLAG_ABLE | one->ready * FLAG_READY | one->lost * FLAG_LOST |
           one->named * FLAG_NAMED | one->told * FLAG_TOLD | one->unwanted * FLAG_UNWANTED |
           one->start * FLAG_START | one->kill * FLAG_KILL;
}

static void set_flags(adli_member *one, int flags)
{
    one->able = flags & FLAG_ABLE;
    one->ready = flags & FLAG_READY;
    one->lost = flags & FLAG_LOST;
    one->named = flags & FLAG_NAMED;
    one->told = flags & FLAG_TOLD;
    one->unwanted = flags & FLAG_UNWANTED;
    one->start = flags & FLAG_START;
    one->kill = flags & FLAG_KILL;
}

static void write_member(const adli_member *one, const adli_world_names *names, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "member", one->number);
    adli_jw_int(out, "rank", one->rank);
    adli_jw_text(out, "node", names->name(names->user, one->node));
    adli_jw_int(out, "role", one->role);
    adli_jw_int(out, "gone", one->gone);
    adli_jw_int(out, "flags", flags_of(one));
    adli_jw_int(out, "applied", (int64_t)one->applied);
    adli_jw_int(out, "lostIn", one->lost_in);
    adli_jw_int(out, "entered", one->entered);
    adli_jw_close(out, '}');
}

void adli_worlds_write(const adli_worlds *worlds, const adli_world_names *names, adli_buf *out)
{
    adli_jw_open(out, NULL, '{');
    adli_jw_int(out, "generation", worlds->generation);
    adli_jw_int(out, "last", worlds->last);
    adli_jw_int(out, "dropped", worlds->dropped);
    adli_jw_int(out, "nextMember", worlds->next_member);
    adli_jw_int(out, "replicas", worlds->replicas);
    adli_jw_text(out, "address", worlds->address);
    adli_jw_int(out, "port", worlds->port);
    adli_jw_number(out, "since", worlds->since_s);
    adli_jw_number(out, "cramped", worlds->cramped_s);
    adli_jw_bool(out, "broken", worlds->broken);
    adli_jw_bool(out, "mends", worlds->mends);
    adli_jw_bool(out, "refused", worlds->refused);
    adli_jw_bool(out, "resized", worlds->resized);
    adli_jw_int(out, "failures", worlds->failures);
    adli_jw_int(out, "unformed", worlds->unformed);
    adli_jw_open(out, "next", '[');
    for (int i = 0; i < worlds->next_count; i++)
        adli_jw_int(out, NULL, worlds->next[i]);
    adli_jw_close(out, ']');
    adli_jw_open(out, "members", '[');
    for (size_t i = 0; i < worlds->count; i++)
        write_member(worlds->all[i], names, out);
    adli_jw_close(out, ']');
    adli_jw_close(out, '}');
}

/* A whole number of the object within 0 .. most; ok becomes false when it is not. */
static int64_t number(const json_t *from, const char *key, int64_t most, bool *ok)
{
    const json_t *value = json_object_get(from, key);
    int64_t read = json_is_integer(value) ? json_integer_value(value) : -1;
    if (read < 0 || read > most)
        *ok = false;
    return *ok ? read : 0;
}

static bool read_member(const json_t *from, const adli_world_names *names, adli_worlds *worlds)
{
    bool ok = true;
    const char *name = json_string_value(json_object_get(from, "node"));
    int node = name ? names->node(names->user, name) : -1;
    adli_member *one =
        node >= 0 && worlds->count < MEMBERS_MAX
            ? adli_worlds_add(worlds, (adli_role)number(from, "role", ADLI_ROLE_DEAD, &ok), 0, node)
            : NULL;
    if (!one)
        return false;
    one->number = (int)number(from, "member", INT_MAX - 1, &ok);
    one->rank = (int)number(from, "rank", INT_MAX - 1, &ok);
    one->gone = (adli_gone)number(from, "gone", ADLI_GONE_ITSELF, &ok);
    set_flags(one, (int)number(from, "flags", 255, &ok));
    one->applied = (uint64_t)number(from, "applied", INT64_MAX, &ok);
    one->lost_in = (uint32_t)number(from, "lostIn", UINT32_MAX, &ok);
    one->entered = (uint32_t)number(from, "entered", UINT32_MAX, &ok);
    return ok;
}

static bool read_next(const json_t *list, adli_worlds *worlds)
{
    size_t count = json_array_size(list);
    worlds->next = count > 0 && count <= MEMBERS_MAX ? adli_calloc(count, sizeof(int)) : NULL;
    for (size_t i = 0; worlds->next && i < count; i++) {
        json_int_t member = json_integer_value(json_array_get(list, i));
        if (member < 0 || member > INT_MAX || !adli_worlds_find(worlds, (int)member))
            return false;
        worlds->next[i] = (int)member;
    }
    worlds->next_count = worlds->next ? (int)count : 0;
    return json_is_array(list) && (count == 0 || worlds->next);
}

static bool read_all(const json_t *from, const adli_world_names *names, adli_worlds *worlds)
{
    bool ok = true;
    size_t i;
    const json_t *item, *members = json_object_get(from, "members");
    json_array_foreach(members, i, item) ok = ok && read_member(item, names, worlds);
    worlds->generation = (uint32_t)number(from, "generation", UINT32_MAX, &ok);
    worlds->last = (uint32_t)number(from, "last", UINT32_MAX, &ok);
    worlds->dropped = (uint32_t)number(from, "dropped", UINT32_MAX, &ok);
    worlds->next_member = (int)number(from, "nextMember", INT_MAX, &ok);
    worlds->replicas = (int)number(from, "replicas", MEMBERS_MAX, &ok);
    worlds->port = (int)number(from, "port", 65535, &ok);
    const char *address = json_string_value(json_object_get(from, "address"));
    snprintf(worlds->address, sizeof worlds->address, "%s", address ? address : "");
    worlds->failures = (int)number(from, "failures", INT_MAX, &ok);
    worlds->unformed = (int)number(from, "unformed", INT_MAX, &ok);
    worlds->since_s = json_number_value(json_object_get(from, "since"));
    worlds->cramped_s = json_number_value(json_object_get(from, "cramped"));
    worlds->broken = json_is_true(json_object_get(from, "broken"));
    worlds->mends = json_is_true(json_object_get(from, "mends"));
    worlds->refused = json_is_true(json_object_get(from, "refused"));
    worlds->resized = json_is_true(json_object_get(from, "resized"));
    for (size_t k = 0; k < worlds->count; k++)
        ok = ok && worlds->all[k]->number < worlds->next_member;
    return ok && json_is_array(members) && worlds->last >= worlds->generation &&
           read_next(json_object_get(from, "next"), worlds);
}

adl_status adli_worlds_read(const char *text, const adli_world_names *names, adli_worlds *worlds)
{
    json_t *root = NULL;
    adl_status status = adli_json_parse(text, strlen(text), &root);
    if (status == ADL_OK && !read_all(root, names, worlds))
        status = adli_fail(ADL_ECORRUPT, "worlds in the store are not readable");
    json_decref(root);
    return status;
}
