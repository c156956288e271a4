/* Whose processes replicas are. A daemon of root's may run the jobs of each namespace as a user of their own
 * (namespaceUsers): then the kernel keeps them from the scheduler's files and from those of other namespaces. What is the
 * scheduler's stays root's and closed: of the state directory others get no more than the way through it, and of a
 * job's directory the job's user gets checkpoint, share and source. docs/security.md. */
#include "backend/local/impl.h"

#include "base/dirs.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { GROUPS_MAX = 64, DEPTH_MAX = 200 };

static adl_status look_up(const char *name, ns_user *out)
{
    gid_t groups[GROUPS_MAX];
    int count = GROUPS_MAX, used;
    const struct passwd *account = getpwnam(name);
    if (!account)
        return adli_fail(ADL_EINVAL, "namespaceUsers: no user %s on this machine", name);
    if (account->pw_uid == 0)
        return adli_fail(ADL_EINVAL, "namespaceUsers: %s is root, which nothing keeps away", name);
    out->id = account->pw_uid;
    out->group = account->pw_gid;
    out->name = adli_strdup(name);
    out->home = adli_strdup(account->pw_dir ? account->pw_dir : "/");
    if (!out->name || !out->home)
        return adli_fail_memory("users");
    if (getgrouplist(name, out->group, groups, &count) < 0)
        return adli_fail(ADL_EINVAL, "namespaceUsers: %s is in more than %d groups", name,
                         GROUPS_MAX);
    used = snprintf(out->identity, sizeof out->identity, "%u:%u", (unsigned)out->id,
                    (unsigned)out->group);
    for (int i = 0; i < count; i++)
        used += snprintf(out->identity + used, sizeof out->identity - (size_t)used, ",%u",
                         (unsigned)groups[i]);
    return ADL_OK;
}

/* "NAMESPACE=USER", ended by a comma or the end. */
static adl_status take_entry(local *self, const char *entry, size_t length)
{
    char text[256];
    snprintf(text, sizeof text, "%.*s", (int)length, entry);
    char *equals = strchr(text, '=');
    if (length >= sizeof text || !equals || equals == text || !equals[1])
        return adli_fail(ADL_EINVAL, "namespaceUsers: \"%.60s\": expected NAMESPACE=USER, ...",
                         text);
    *equals = '\0';
    if (adli_grow(&self->users, &self->user_capacity, self->user_count + 1, sizeof *self->users) !=
        0)
        return adli_fail_memory("users");
    ns_user *item = &self->users[self->user_count++];
    *item = (ns_user){.ns = adli_strdup(text)};
    return item->ns ? look_up(equals + 1, item) : adli_fail_memory("users");
}

adl_status adli_local_users(local *self, const char *list)
{
    adl_status status = ADL_OK;
    if (!list || !*list)
        return ADL_OK;
    if (geteuid() != 0)
        return adli_fail(ADL_EINVAL, "namespaceUsers: only root's scheduler can start processes "
                                     "of other users");
    for (const char *at = list; status == ADL_OK && *at;) {
        at += strspn(at, ", ");
        size_t length = strcspn(at, ", ");
        if (length > 0)
            status = take_entry(self, at, length);
        at += length;
    }
    return status;
}

void adli_local_users_fini(local *self)
{
    for (size_t i = 0; i < self->user_count; i++) {
        free(self->users[i].ns);
        free(self->users[i].name);
        free(self->users[i].home);
    }
    free(self->users);
}

const ns_user *adli_local_user(const local *self, const char *ns)
{
    for (size_t i = 0; i < self->user_count; i++)
        if (strcmp(self->users[i].ns, ns ? ns : "") == 0)
            return &self->users[i];
    return NULL;
}

adl_status adli_local_admit(void *opaque, const char *ns)
{
    const local *self = opaque;
    if (self->user_count == 0 || adli_local_user(self, ns))
        return ADL_OK;
    return adli_fail(ADL_EINVAL,
                     "namespace %.80s: no user of the scheduler's machine is named for it "
                     "(namespaceUsers)",
                     ns);
}

/* ---- directories ---- */

static adl_status failed(const char *what)
{
    return adli_fail(ADL_EIO, "%.200s: %s", what, strerror(errno));
}

/* Gives away what is below, then the directory itself: one that is the user's already was given. Links are given,
 * never followed. The user has none of it before the end, so nothing moves meanwhile. */
static adl_status give(int parent, const char *name, const ns_user *to, int depth)
{
    struct stat info;
    adl_status status = ADL_OK;
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0 || depth > DEPTH_MAX)
        status = failed(name);
    DIR *dir =
        status == ADL_OK && info.st_uid != to->id ? fdopendir(fcntl(fd, F_DUPFD_CLOEXEC, 0)) : NULL;
    for (struct dirent *entry; status == ADL_OK && dir && (entry = readdir(dir));) {
        struct stat seen;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (fstatat(fd, entry->d_name, &seen, AT_SYMLINK_NOFOLLOW) != 0)
            status = failed(entry->d_name);
        else if (S_ISDIR(seen.st_mode))
            status = give(fd, entry->d_name, to, depth + 1);
        else if (fchownat(fd, entry->d_name, to->id, to->group, AT_SYMLINK_NOFOLLOW) != 0)
            status = failed(entry->d_name);
    }
    if (status == ADL_OK && info.st_uid != to->id && fchown(fd, to->id, to->group) != 0)
        status = failed(name);
    if (status == ADL_OK && depth == 0 && fchmod(fd, 0700) != 0)
        status = failed(name);
    if (dir)
        closedir(dir);
    if (fd >= 0)
        close(fd);
    return status;
}

adl_status adli_local_give(const local *self, const char *uid, const ns_user *to)
{
    static const char *const theirs[] = {"checkpoint", "share", "source"};
    static const char *const ours[] = {"groups", "logs"};
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/jobs", self->state_dir);
    if (chmod(self->state_dir, 0711) != 0 || chmod(path, 0711) != 0)
        return failed(path);
    snprintf(path, sizeof path, "%s/jobs/%s", self->state_dir, uid);
    int job = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    adl_status status = job < 0 || fchmod(job, 0711) != 0 ? failed(path) : ADL_OK;
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(theirs); i++)
        status = give(job, theirs[i], to, 0);
    for (size_t i = 0; status == ADL_OK && i < ADLI_COUNT(ours); i++)
        if (fchmodat(job, ours[i], 0700, 0) != 0 && errno != ENOENT)
            status = failed(ours[i]);
    if (job >= 0)
        close(job);
    return status;
}
