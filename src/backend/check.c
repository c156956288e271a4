/* What every backend asks of the names and starts that it is given. */
#include "backend/backend.h"

#include <ctype.h>
#include <string.h>

enum { UID_BYTES = 64 };

adl_status adli_member_check(const char *uid, int group)
{
    size_t length = uid ? strlen(uid) : 0;
    if (length == 0 || length >= UID_BYTES)
        return adli_fail(ADL_EINVAL, "uid: 1 to %d characters", UID_BYTES - 1);
    for (const char *c = uid; *c; c++)
        if (!isascii((unsigned char)*c) || (!isalnum((unsigned char)*c) && *c != '-'))
            return adli_fail(ADL_EINVAL, "uid: only letters, digits and '-'");
    if (group < 1)
        return adli_fail(ADL_EINVAL, "group %d: they count from 1", group);
    return ADL_OK;
}

static adl_status check_members(const adli_start *start)
{
    if (start->count < 1 || start->count > ADLI_MEMBERS_MAX || !start->members)
        return adli_fail(ADL_EINVAL, "members: %d, not in 1 .. %d", start->count, ADLI_MEMBERS_MAX);
    for (int i = 0; i < start->count; i++) {
        const adli_member_start *which = &start->members[i];
        if (which->member < (i > 0 ? start->members[i - 1].member + 1 : 0))
            return adli_fail(ADL_EINVAL, "members: %d is not above the one before it",
                             which->member);
        if (which->rank < 0 || which->rank >= start->replicas || !which->node)
            return adli_fail(ADL_EINVAL, "member %d: rank %d, not in 0 .. %d", which->member,
                             which->rank, start->replicas - 1);
    }
    return ADL_OK;
}

static adl_status check_env(const char *const *env)
{
    for (int i = 0; env && env[i]; i++)
        if (!strchr(env[i], '=') || env[i][0] == '=')
            return adli_fail(ADL_EINVAL, "env: \"%.40s\" is not NAME=value", env[i]);
    return ADL_OK;
}

adl_status adli_start_check(const adli_start *start)
{
    adl_status status = adli_member_check(start->uid, start->group);
    if (status == ADL_OK && (start->replicas < 1 || start->nodes < 1))
        status = adli_fail(ADL_EINVAL, "a world of %d replicas on %d nodes", start->replicas,
                           start->nodes);
    if (status == ADL_OK)
        status = check_members(start);
    if (status == ADL_OK)
        status = check_env(start->env);
    return status == ADL_OK ? check_env(start->defaults) : status;
}
