/* How many entries a directory has, hidden ones too. */
#ifndef ADLT_ENTRIES_H
#define ADLT_ENTRIES_H

#include <dirent.h>
#include <string.h>

/* 0: it is not there. */
static inline int adlt_entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (dir)
        closedir(dir);
    return count;
}

#endif
