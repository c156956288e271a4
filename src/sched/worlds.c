#include "sched/worlds.h"

#include "base/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEWCOMER_FAILURES_MAX = 3, MENDINGS_MAX = 3, NOTES_MAX = 256 };
/* How long new processes may take until they are ready, and the others until they have noticed a death: both are
 * about programs that hang, so they are long. */
static const double join_limit_s = 600, lost_limit_s = 120, cross_limit_s = 300;
/* How long new ones may wait for others to go from where they are to be: two jobs may wait for each other. */
static const double room_limit_s = 30;

void adli_worlds_init(adli_worlds *worlds)
{
    *worlds = (adli_worlds){0};
}

void adli_worlds_fini(adli_worlds *worlds)
{
    for (size_t i = 0; i < worlds->count; i++)
        free(worlds->all[i]);
    free(worlds->all);
    free(worlds->wanted);
    free(worlds->next);
    free(worlds->notes);
    *worlds = (adli_worlds){0};
}

/* What people should know is not worth failing for. */
__attribute__((format(printf, 5, 6))) static void note(adli_worlds *worlds, adli_world_news news,
                                                       const adli_member *member, double seconds,
                                                       const char *format, ...)
{
    va_list args;
    if (worlds->note_count >= NOTES_MAX ||
        adli_grow(&worlds->notes, &worlds->note_capacity, worlds->note_count + 1,
                  sizeof *worlds->notes) != 0)
        return;
    adli_world_note *made = &worlds->notes[worlds->note_count++];
    *made = (adli_world_note){.news = news, .member = member, .seconds = seconds};
    va_start(args, format);
    vsnprintf(made->text, sizeof made->text, format, args);
    va_end(args);
}

/* ---- who is who -------------------------------------------------------------------------------- */

adli_member *adli_worlds_add(adli_worlds *worlds, adli_role role, int rank, int node)
{
    adli_member *made = adli_calloc(1, sizeof *made);
    if (!made ||
        adli_grow(&worlds->all, &worlds->capacity, worlds->count + 1, sizeof *worlds->all) != 0) {
        free(made);
        return NULL;
    }
    *made =
        (adli_member){.number = worlds->next_member++, .rank = rank, .node = node, .role = role};
    worlds->all[worlds->count++] = made;
    worlds->replicas += role == ADLI_ROLE_IN;
    return made;
}

adli_member *adli_worlds_find(const adli_worlds *worlds, int number)
{
    for (size_t i = 0; i < worlds->count; i++)
        if (worlds->all[i]->number == number)
            return worlds->all[i];
    return NULL;
}

adl_status adli_worlds_want(adli_worlds *worlds, const int *nodes, int count)
{
    if (adli_grow(&worlds->wanted, &worlds->wanted_capacity, (size_t)(count ? count : 1),
                  sizeof *worlds->wanted) != 0)
        return adli_fail_memory("allocation");
    if (count)
        memcpy(worlds->wanted, nodes, (size_t)count * sizeof *nodes);
    worlds->wanted_count = count;
    return ADL_OK;
}

static bool lives_in(const adli_member *one)
{
    return one->role == ADLI_ROLE_IN && one->gone == ADLI_GONE_NOT;
}

bool adli_worlds_able(const adli_worlds *worlds)
{
    bool able = worlds->replicas > 0 && worlds->running;
    for (size_t i = 0; i < worlds->count; i++)
        if (lives_in(worlds->all[i]))
            able = able && worlds->all[i]->able && !worlds->all[i]->away;
    return able;
}

/* ---- places ------------------------------------------------------------------------------------ */

/* The wanted places, as those who are there take them; -1: taken. NULL: no memory. */
static int *free_places(const adli_worlds *worlds)
{
    return adli_memdup(worlds->wanted ? worlds->wanted : (const int[1]){-1},
                       (size_t)(worlds->wanted_count ? worlds->wanted_count : 1),
                       sizeof *worlds->wanted);
}

static bool take_place(int *places, int count, int node)
{
    for (int i = 0; i < count; i++)
        if (places[i] == node) {
            places[i] = -1;
            return true;
        }
    return false;
}

/* Those who stay, in the order of ranks, take their places; one that has ended has its place until the others are
 * without it, or have ended too. kept: may be NULL. Returns how many. */
static int keep_places(const adli_worlds *worlds, int *places, const adli_member **kept)
{
    int found = 0;
    for (size_t i = 0; i < worlds->count; i++) {
        const adli_member *one = worlds->all[i];
        if (one->role != ADLI_ROLE_IN || one->replaced ||
            !take_place(places, worlds->wanted_count, one->node))
            continue;
        if (kept)
            kept[found] = one;
        found++;
    }
    return found;
}

bool adli_worlds_settled(const adli_worlds *worlds)
{
    int *places = free_places(worlds);
    int kept = places ? keep_places(worlds, places, NULL) : 0;
    free(places);
    return kept == worlds->wanted_count && worlds->replicas == worlds->wanted_count;
}

bool adli_worlds_restart(const adli_worlds *worlds)
{
    if (worlds->refused || worlds->wanted_count == 0)
        return true;
    if (worlds->broken || adli_worlds_on_offer(worlds) || adli_worlds_settled(worlds))
        return false;
    for (size_t i = 0; i < worlds->count;
         i++) { /* one that hangs up is ending: how, is not known */
        const adli_member *one = worlds->all[i];
        if (lives_in(one) && one->able && one->away)
            return false;
    }
    return !adli_worlds_able(worlds);
}

const char adli_worlds_cannot[] = "its program cannot change its size while it runs";

const char *adli_worlds_why(const adli_worlds *worlds)
{
    if (!adli_worlds_restart(worlds) || worlds->wanted_count == 0 || worlds->refused)
        return NULL; /* the last was told when it was refused */
    return adli_worlds_cannot;
}

void adli_worlds_refuse(adli_worlds *worlds, const char *why)
{
    if (!worlds->refused)
        note(worlds, ADLI_NEWS_RESTART, NULL, 0, "%s", why);
    worlds->refused = true;
}

/* ---- ends -------------------------------------------------------------------------------------- */

static bool was_killed(const adli_member *one)
{
    return one->gone == ADLI_GONE_KILLED;
}

/* It has left the present world, which is not over yet for the others: it has crossed out of it, or, when a member was
 * lost, taken an offer from before for what comes now. */
static bool left_early(const adli_worlds *worlds, const adli_member *one)
{
    bool listed = false;
    for (int i = 0; i < worlds->next_count; i++)
        listed |= worlds->next[i] == one->number;
    return one->gone == ADLI_GONE_LEFT && (one->lost || (adli_worlds_on_offer(worlds) && !listed));
}

/* Is there somebody who may go on without it? */
static bool survivable(const adli_worlds *worlds)
{
    int left = 0;
    for (size_t i = 0; i < worlds->count; i++) {
        const adli_member *one = worlds->all[i];
        if (one->role != ADLI_ROLE_IN || was_killed(one) || left_early(worlds, one))
            continue;
        if (one->gone != ADLI_GONE_NOT || !one->able)
            return false;
        left++;
    }
    return left > 0 && worlds->running && !worlds->refused;
}

bool adli_worlds_handles(const adli_worlds *worlds, const adli_member *member)
{
    switch (member->role) {
    case ADLI_ROLE_IN:
        return left_early(worlds, member) ||
               (was_killed(member) && (member->told || member->taken || !worlds->deadly) &&
                survivable(worlds));
    case ADLI_ROLE_NEW:
    case ADLI_ROLE_OUT:
        /* waited for at the end, whatever they end with */
        return member->gone != ADLI_GONE_NOT || !worlds->stopping;
    case ADLI_ROLE_DEAD:
        break;
    }
    return true;
}

/* ---- opening a world --------------------------------------------------------------------------- */

static void end_offer(adli_worlds *worlds)
{
    free(worlds->next);
    worlds->next = NULL;
    worlds->next_count = 0;
    worlds->opened = false;
}

/* The next world has these members, in this order; they are copied. */
static void open_world(adli_worlds *worlds, const int *members, int count, double now_s)
{
    end_offer(worlds);
    worlds->mends = worlds->broken;
    worlds->next = adli_memdup(members, (size_t)count, sizeof *members);
    if (!worlds->next) {
        adli_worlds_refuse(worlds, "no memory for another world");
        return;
    }
    worlds->next_count = count;
    worlds->last++;
    worlds->since_s = now_s;
    worlds->opened = true;
}

/* Nothing is to come of what is on offer; whether that is so the members say. */
static void take_back(adli_worlds *worlds)
{
    worlds->dropped = worlds->last;
    worlds->withdrawn = true;
}

static int by_rank(const void *a, const void *b)
{
    const adli_member *x = *(adli_member *const *)a, *y = *(adli_member *const *)b;
    bool x_in = x->role == ADLI_ROLE_IN, y_in = y->role == ADLI_ROLE_IN;
    if (x_in != y_in)
        return x_in ? -1 : 1;
    return x_in ? x->rank - y->rank : x->number - y->number;
}

static void sort_members(adli_worlds *worlds)
{
    if (worlds->count > 0)
        qsort(worlds->all, worlds->count, sizeof *worlds->all, by_rank);
}

/* When both are known: that all have crossed, and how long nobody took a step. */
static void say_pause(adli_worlds *worlds)
{
    if (worlds->paused != worlds->generation || worlds->paused == 0)
        return;
    worlds->paused = 0;
    note(worlds, worlds->resized ? ADLI_NEWS_RESIZED : ADLI_NEWS_WENT_ON, NULL, worlds->pause_s,
         "%d", worlds->replicas);
}

/* One that is not in the present world any more and waits for another: none will come. */
static void end_waiting(adli_member *one)
{
    if (one->role == ADLI_ROLE_OUT && one->lost)
        one->kill = true;
}

static int rank_in(const int *members, int count, int number)
{
    int rank = count - 1;
    while (rank >= 0 && members[rank] != number)
        rank--;
    return rank;
}

/* The world on offer is the present one now. Whoever has not joined it yet, because it broke before, stays a new one:
 * it waits for the next. */
static void commit(adli_worlds *worlds)
{
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        int rank = rank_in(worlds->next, worlds->next_count, one->number);
        if (rank >= 0) {
            one->rank = rank;
            if (one->role == ADLI_ROLE_NEW && one->entered >= worlds->last)
                one->role = ADLI_ROLE_IN;
            one->able = one->able || one->role == ADLI_ROLE_IN;
        } else if (one->role == ADLI_ROLE_IN) {
            one->role = one->gone != ADLI_GONE_NOT ? ADLI_ROLE_DEAD : ADLI_ROLE_OUT;
            end_waiting(one);
        }
    }
    sort_members(worlds);
    worlds->replicas = worlds->next_count;
    worlds->generation = worlds->entered = worlds->last;
    worlds->resized = !worlds->mends;
    worlds->broken = worlds->mends = false;
    worlds->failures = worlds->unformed = 0;
    end_offer(worlds);
    say_pause(worlds);
}

/* ---- hearing ----------------------------------------------------------------------------------- */

static bool all_entered(const adli_worlds *worlds)
{
    for (int i = 0; i < worlds->next_count; i++) {
        const adli_member *one = adli_worlds_find(worlds, worlds->next[i]);
        if (!one || one->entered < worlds->last)
            return false;
    }
    return true;
}

static void hear_refused(adli_worlds *worlds, const adli_member *from, const char *why)
{
    if (!adli_worlds_on_offer(worlds) || worlds->mends || from->rank != 0 ||
        from->role != ADLI_ROLE_IN)
        return;
    worlds->generation = worlds->last; /* the members are as they were; numbers go up */
    end_offer(worlds);
    if (worlds->failures == 0 && !worlds->broken) {
        char text[128];
        snprintf(text, sizeof text, "cannot be resized in place (%.80s)", why);
        adli_worlds_refuse(worlds, text);
    }
}

static void hear_lost(adli_worlds *worlds, adli_member *from, uint32_t generation, uint64_t applied,
                      int member, double now_s)
{
    if (generation < from->entered)
        return; /* from before: the others have gone on meanwhile, and it with them */
    if (adli_worlds_on_offer(worlds) && generation == worlds->last && !worlds->mends)
        commit(worlds); /* some had crossed: who they were with now is the world that lost one */
    from->lost = true;
    from->lost_in = generation;
    from->applied = applied;
    end_waiting(from);
    if (from->role != ADLI_ROLE_IN)
        return;
    adli_member *named = adli_worlds_find(worlds, member);
    if (named)
        named->named = true;
    if (!worlds->broken)
        worlds->since_s = now_s;
    worlds->broken = true;
}

static void hear_entered(adli_worlds *worlds, adli_member *from, uint32_t generation)
{
    from->entered = generation;
    from->lost = from->named = false;
    if (adli_worlds_on_offer(worlds) && generation == worlds->last && all_entered(worlds)) {
        commit(worlds);
    } else if (from->role == ADLI_ROLE_NEW && generation == worlds->generation) {
        from->role = ADLI_ROLE_IN; /* another was quicker to say that this world broke */
        from->able = true;
        sort_members(worlds);
    }
}

/* The group of a world without the dead did not form at one of its members: that one waits for another again. */
static void hear_unformed(adli_worlds *worlds, adli_member *from, uint32_t generation)
{
    if (!adli_worlds_on_offer(worlds) || !worlds->mends || generation != worlds->last ||
        from->role != ADLI_ROLE_IN)
        return;
    from->lost = true;
    from->lost_in = generation;
    worlds->unformed++;
}

static void hear_paused(adli_worlds *worlds, uint32_t generation, double seconds)
{
    worlds->paused = generation;
    worlds->pause_s = isfinite(seconds) && seconds > 0 ? fmin(seconds, 1e6) : 0;
    say_pause(worlds);
}

bool adli_worlds_hear(adli_worlds *worlds, adli_member *from, const char *line, double now_s)
{
    unsigned generation;
    unsigned long long applied;
    int member = -1, used = 0;
    double seconds;
    if (strcmp(line, "able") == 0) {
        from->able = true;
    } else if (strcmp(line, "ready") == 0) {
        from->ready = true;
    } else if (sscanf(line, "entered %9u", &generation) == 1) {
        if (generation < from->entered || generation > worlds->last)
            return true; /* said again, late; or never offered */
        hear_entered(worlds, from, generation);
    } else if (sscanf(line, "unformed %9u", &generation) == 1) {
        hear_unformed(worlds, from, generation);
    } else if (sscanf(line, "paused %9u %lf", &generation, &seconds) == 2) {
        hear_paused(worlds, generation, seconds);
    } else if (sscanf(line, "refused %9u %n", &generation, &used) == 1 && used > 0) {
        if (generation == worlds->last)
            hear_refused(worlds, from, line + used);
    } else if (sscanf(line, "lost %9u %18llu %9d", &generation, &applied, &member) >= 2) {
        hear_lost(worlds, from, generation, applied, member, now_s);
    } else {
        return false;
    }
    return true;
}

/* ---- deaths ------------------------------------------------------------------------------------ */

static int ahead_first(const void *a, const void *b)
{
    const adli_member *x = *(adli_member *const *)a, *y = *(adli_member *const *)b;
    if (x->applied != y->applied)
        return x->applied > y->applied ? -1 : 1;
    return x->rank - y->rank;
}

/* Those who wait for a world without the dead; false: some have not noticed yet. */
static bool list_survivors(const adli_worlds *worlds, int *members, int *count)
{
    adli_member **left = adli_calloc(worlds->count, sizeof(adli_member *));
    bool all = left != NULL;
    size_t found = 0;
    for (size_t i = 0; all && i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (!lives_in(one))
            continue;
        all = one->lost;
        left[found++] = one;
    }
    if (all && found > 0)
        qsort(left, found, sizeof(adli_member *), ahead_first);
    for (size_t i = 0; all && i < found; i++)
        members[i] = left[i]->number;
    *count = (int)found;
    free(left);
    return all;
}

static void end_member(adli_worlds *worlds, adli_member *one, const char *why)
{
    if (one->kill)
        return;
    one->kill = true;
    note(worlds, ADLI_NEWS_KILLED, one, 0, "%s", why);
}

static const char *const cannot_go_on = "was stopped and cannot go on with the others";

/* One that others have lost and that is stopped, or that has not noticed for long, is not one of them any more. */
static void end_silent(adli_worlds *worlds, double now_s)
{
    double passed_s = now_s - worlds->since_s;
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        bool entered = adli_worlds_on_offer(worlds) && one->entered == worlds->last;
        if (!lives_in(one) || one->lost || entered)
            continue;
        bool silent = one->named &&
                      (one->stopped || (worlds->patience_s > 0 && passed_s > worlds->patience_s));
        if (silent || passed_s > lost_limit_s)
            end_member(worlds, one, one->stopped ? cannot_go_on : "does not answer");
    }
}

/* Has one of those who were offered a world without the dead died since, or lost it again? */
static bool mending_fails(const adli_worlds *worlds)
{
    for (int i = 0; i < worlds->next_count; i++) {
        const adli_member *one = adli_worlds_find(worlds, worlds->next[i]);
        if (!one || one->gone != ADLI_GONE_NOT || (one->lost && one->lost_in == worlds->last))
            return true;
    }
    return false;
}

/* Nobody meets with one that is stopped, and it will not meet with those who have gone on. */
static void end_stopped(adli_worlds *worlds)
{
    for (int i = 0; i < worlds->next_count; i++) {
        adli_member *one = adli_worlds_find(worlds, worlds->next[i]);
        if (one && one->gone == ADLI_GONE_NOT && one->stopped)
            end_member(worlds, one, cannot_go_on);
    }
}

/* Is it time to give up finding a world without the dead? */
static bool hopeless(adli_worlds *worlds, double now_s)
{
    if (now_s - worlds->since_s <= cross_limit_s &&
        worlds->unformed < MENDINGS_MAX * worlds->replicas)
        return false;
    adli_worlds_refuse(worlds, "the others do not come together");
    return true;
}

/* The world has lost a member: the others are given one without it, as soon as all have noticed. */
static void mend(adli_worlds *worlds, double now_s)
{
    int count = 0;
    end_silent(worlds, now_s);
    if (adli_worlds_on_offer(worlds) && worlds->mends) {
        if (hopeless(worlds, now_s) || !mending_fails(worlds))
            return;
        end_stopped(worlds);
        take_back(worlds);
        worlds->generation = worlds->last;
        end_offer(worlds);
    }
    int *members = adli_calloc(worlds->count ? worlds->count : 1, sizeof *members);
    if (members && list_survivors(worlds, members, &count) && count > 0) {
        worlds->generation = worlds->last; /* nobody has crossed to what was on offer before */
        open_world(worlds, members, count, now_s);
    }
    free(members);
}

static void look_for_deaths(adli_worlds *worlds, double now_s)
{
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (one->role != ADLI_ROLE_IN || !was_killed(one) || one->told ||
            (worlds->deadly && !one->taken) || !survivable(worlds))
            continue;
        one->told = true;
        worlds->deaths += !one->taken;
        note(worlds, ADLI_NEWS_DIED, one, 0, " ");
        if (!worlds->broken)
            worlds->since_s = now_s;
        if (adli_worlds_on_offer(worlds) &&
            !worlds->mends) /* if they cross nevertheless, they say so */
            take_back(worlds);
        worlds->broken = true;
        for (size_t k = 0; k < worlds->count; k++) /* ranks are about to change */
            worlds->all[k]->replaced = false;
    }
}

/* ---- sizes ------------------------------------------------------------------------------------- */

/* It has no part in the job yet: nothing is lost with it. */
static void end_newcomer(adli_member *one)
{
    one->unwanted = one->kill = true;
}

/* A new process died before it had joined, or does not come: the others go on as they are. */
static void look_at_newcomers(adli_worlds *worlds)
{
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (one->role != ADLI_ROLE_NEW || one->gone == ADLI_GONE_NOT)
            continue;
        one->role = ADLI_ROLE_DEAD;
        if (one->unwanted)
            continue;
        worlds->failures++;
        note(worlds, ADLI_NEWS_NEW_DIED, one, 0, " ");
        if (adli_worlds_on_offer(worlds) && !worlds->mends)
            take_back(worlds);
        if (worlds->failures < NEWCOMER_FAILURES_MAX)
            continue;
        note(worlds, ADLI_NEWS_GAVE_UP, NULL, 0, "%d", worlds->replicas);
        for (size_t k = 0; k < worlds->count; k++) {
            worlds->all[k]->replaced = false;
            if (worlds->all[k]->role == ADLI_ROLE_NEW && worlds->all[k]->gone == ADLI_GONE_NOT)
                end_newcomer(worlds->all[k]);
        }
    }
}

/* New ones that are there take their places; those for whom there is none go. true: all are ready. */
static bool place_newcomers(adli_worlds *worlds, int *places, double now_s)
{
    bool ready = true;
    for (size_t i = 0; i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (one->role != ADLI_ROLE_NEW || one->gone != ADLI_GONE_NOT || one->unwanted)
            continue;
        if (!take_place(places, worlds->wanted_count, one->node)) {
            end_newcomer(one);
            continue;
        }
        ready = ready && one->ready;
        if (!one->ready && now_s - worlds->since_s > join_limit_s)
            one->kill = true;
    }
    return ready;
}

/* Starts who is missing, beside so many that stay. true: nobody was. */
static bool fill_places(adli_worlds *worlds, const int *places, int stay, double now_s)
{
    bool full = true, cramped = false;
    int rank = stay;
    for (size_t i = 0; i < worlds->count; i++)
        rank += worlds->all[i]->role == ADLI_ROLE_NEW && worlds->all[i]->gone == ADLI_GONE_NOT &&
                !worlds->all[i]->unwanted;
    for (int i = 0; i < worlds->wanted_count; i++) {
        int more = 1;
        if (places[i] < 0)
            continue;
        full = false;
        for (size_t k = 0; k < worlds->count; k++)
            more += worlds->all[k]->start && worlds->all[k]->node == places[i];
        if (worlds->room && !worlds->room(worlds->user, places[i], more)) {
            cramped = true;
            continue;
        }
        adli_member *made = adli_worlds_add(worlds, ADLI_ROLE_NEW, rank++, places[i]);
        if (!made)
            return false;
        made->start = true;
        worlds->since_s = now_s;
    }
    if (!cramped)
        worlds->cramped_s = 0;
    else if (worlds->cramped_s == 0)
        worlds->cramped_s = now_s;
    else if (now_s - worlds->cramped_s > room_limit_s)
        adli_worlds_refuse(worlds, "there is no room for new replicas beside those that leave");
    return full;
}

/* All move: is there room for all of them at once? */
static bool has_room_to_move(const adli_worlds *worlds, const int *places)
{
    bool room = true;
    for (int i = 0; i < worlds->wanted_count && worlds->room; i++) {
        int more = 1;
        for (int k = 0; k < i; k++)
            more += places[k] == places[i];
        room = room && (places[i] < 0 || worlds->room(worlds->user, places[i], more));
    }
    return room;
}

/* Of those who leave the one that leads the new ones: it has the state, and leaves when they have it, too. It is not at
 * one of the places, so that world is not the wanted one, and the next is. */
static const adli_member *guide(const adli_worlds *worlds)
{
    for (size_t i = 0; i < worlds->count; i++)
        if (worlds->all[i]->role == ADLI_ROLE_IN)
            return worlds->all[i];
    return NULL;
}

/* The members of the wanted world: those who stay, or one who leaves after them, then the new ones. */
static void open_wanted(adli_worlds *worlds, const adli_member *const *kept, int count,
                        double now_s)
{
    int *members = adli_calloc(worlds->count + 1, sizeof *members);
    const adli_member *leads = count == 0 ? guide(worlds) : NULL;
    int size = worlds->wanted_count + (leads != NULL);
    if (members && leads)
        members[count++] = leads->number;
    else if (count == 0)
        size = -1;
    for (int i = 0; members && !leads && i < count; i++)
        members[i] = kept[i]->number;
    for (size_t i = 0; members && i < worlds->count; i++) {
        const adli_member *one = worlds->all[i];
        if (one->role == ADLI_ROLE_NEW && one->gone == ADLI_GONE_NOT && one->ready &&
            !one->unwanted)
            members[count++] = one->number;
    }
    for (size_t i = 0; i < worlds->count; i++)
        worlds->all[i]->replaced = worlds->all[i]->replaced && worlds->all[i] == leads;
    if (members && count == size)
        open_world(worlds, members, count, now_s);
    free(members);
}

static void resize(adli_worlds *worlds, double now_s)
{
    if (adli_worlds_on_offer(worlds)) {
        if (now_s - worlds->since_s > cross_limit_s)
            adli_worlds_refuse(worlds, "the replicas did not resize in time");
        return;
    }
    int *places = free_places(worlds);
    const adli_member **kept = adli_calloc(worlds->count ? worlds->count : 1, sizeof *kept);
    if (places && kept) {
        int stay = keep_places(worlds, places, kept);
        bool ready = place_newcomers(worlds, places, now_s);
        bool change = stay < worlds->wanted_count || worlds->replicas > worlds->wanted_count;
        if (worlds->wanted_count == 0)
            change = false; /* it is being stopped */
        else if (stay == 0 && !has_room_to_move(worlds, places))
            adli_worlds_refuse(worlds, "all its replicas move, and there is no room beside them");
        else if (fill_places(worlds, places, stay, now_s) && ready && change)
            open_wanted(worlds, kept, stay, now_s);
    }
    free(kept);
    free(places);
}

/* Then the others are about to, or that is a failure. */
static bool anybody_ended(const adli_worlds *worlds)
{
    bool any = false;
    for (size_t i = 0; i < worlds->count; i++)
        any |= worlds->all[i]->role == ADLI_ROLE_IN && worlds->all[i]->gone != ADLI_GONE_NOT;
    return any;
}

void adli_worlds_act(adli_worlds *worlds, double now_s)
{
    if (!worlds->running || worlds->refused)
        return;
    look_for_deaths(worlds, now_s);
    look_at_newcomers(worlds);
    if (worlds->broken)
        mend(worlds, now_s);
    else if (adli_worlds_able(worlds) && !anybody_ended(worlds))
        resize(worlds, now_s);
}

double adli_worlds_deadline(const adli_worlds *worlds)
{
    double next = HUGE_VAL;
    if (!worlds->running || worlds->refused)
        return next;
    if (worlds->broken) {
        bool named = false;
        for (size_t i = 0; i < worlds->count; i++)
            named |= lives_in(worlds->all[i]) && worlds->all[i]->named && !worlds->all[i]->lost;
        next =
            worlds->since_s + (named && worlds->patience_s > 0 ? worlds->patience_s : lost_limit_s);
    } else if (adli_worlds_on_offer(worlds)) {
        next = worlds->since_s + cross_limit_s;
    } else if (!adli_worlds_settled(worlds)) {
        next = worlds->cramped_s > 0 ? worlds->cramped_s + room_limit_s
                                     : worlds->since_s + join_limit_s;
    }
    return next + 0.01; /* limits are passed, not reached */
}
