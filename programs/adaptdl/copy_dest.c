#include "copy_dest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 4096 };

bool copy_plain(const char *name)
{
    return *name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && !strchr(name, '/') &&
           strlen(name) <= 255;
}

int copy_cannot_write(const char *name)
{
    return problem("cp", EXIT_USAGE, "%s: %s", name, strerror(errno));
}

int copy_open_dest(const char *remote, const char *dest, const char **name, int *parent)
{
    struct stat seen;
    char folder[PATH_BYTES];
    const char *slash = strrchr(remote, '/'), *last = strrchr(dest, '/');
    bool into = stat(dest, &seen) == 0 && S_ISDIR(seen.st_mode);
    *parent = -1;
    if (into) {
        *name = slash ? slash + 1 : remote;
        snprintf(folder, sizeof folder, "%s", dest);
    } else {
        *name = last ? last + 1 : dest;
        snprintf(folder, sizeof folder, "%.*s", last ? (int)(last - dest) + 1 : 1,
                 last ? dest : ".");
    }
    if (strlen(dest) >= sizeof folder || !copy_plain(*name))
        return problem("cp", EXIT_USAGE, "%.200s: not a name for a file", dest);
    *parent = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *parent >= 0 ? EXIT_DONE : copy_cannot_write(folder);
}
