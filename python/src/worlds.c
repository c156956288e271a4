/* Which processes of a job train together, for whoever starts them from Python (adaptdl_ray): an object around the
 * state machine of sched/worlds.h, that the launcher and the scheduler use as well. What members say and what became of
 * them goes in, with the time; whom to start and to end comes out, and the world on offer as replicas ask for it
 * (train/opener_http.c). Places are numbers of the owner's, one for each process that it could start. */
#include "core.h"

#include "base/buf.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "sched/worlds.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 63, OFFER_MAX = 1 << 20 };
/* How long one that the others have lost may take to say that it has lost them. */
static const double patience_s = 2;

/* What replicas are told. */
typedef struct offer {
    uint32_t generation, dropped;
    bool open;
    int nodes;
    int *members; /* [count] */
    int count;
} offer;

typedef struct worlds_object {
    PyObject_HEAD adli_worlds worlds;
    offer offer;
    int restarts, nodes;
    unsigned saves;                 /* that replicas were asked for */
    char name[NAME_MAX_LENGTH + 1]; /* of this group of processes, in the place of a scheduler's */
} worlds_object;

static PyObject *worlds_type;

/* ---- values ------------------------------------------------------------------------------------- */

/* A list of whole numbers; NULL with an exception. */
static int *read_places(PyObject *list, int *count)
{
    Py_ssize_t length = PyList_Check(list) ? PyList_Size(list) : -1;
    if (length < 0 || length > 65535) {
        PyErr_SetString(PyExc_TypeError, "places must be a list of at most 65535 numbers");
        return NULL;
    }
    int *places = adli_calloc((size_t)length + 1, sizeof *places);
    if (!places)
        return (int *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < length; i++) {
        long place = PyLong_AsLong(PyList_GetItem(list, i));
        if (!PyErr_Occurred() && (place < 0 || place > 1 << 30))
            PyErr_Format(PyExc_ValueError, "place %ld: not from 0 to 2^30", place);
        if (PyErr_Occurred()) {
            free(places);
            return NULL;
        }
        places[i] = (int)place;
    }
    *count = (int)length;
    return places;
}

/* Appends a new reference; false with an exception, also when the value could not be made. */
static bool append(PyObject *list, PyObject *value)
{
    bool fine = value && PyList_Append(list, value) == 0;
    Py_XDECREF(value);
    return fine;
}

static adli_member *member_of(const worlds_object *self, int number)
{
    adli_member *found = adli_worlds_find(&self->worlds, number);
    if (!found)
        PyErr_Format(PyExc_LookupError, "there is no member %d", number);
    return found;
}

/* ---- life --------------------------------------------------------------------------------------- */

static PyObject *worlds_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"name", "restarts", "places", "nodes", NULL};
    const char *name;
    int restarts, nodes, count;
    PyObject *list;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "siOi:Worlds", names, &name, &restarts, &list,
                                     &nodes))
        return NULL;
    if (strlen(name) > NAME_MAX_LENGTH || restarts < 0 || nodes < 1)
        return PyErr_Format(PyExc_ValueError, "Worlds: name %.80s, restarts %d, nodes %d", name,
                            restarts, nodes);
    int *places = read_places(list, &count);
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    worlds_object *self = places ? (worlds_object *)allocate(type, 0) : NULL;
    if (self) {
        adli_worlds_init(&self->worlds);
        self->worlds.running = true;
        self->worlds.patience_s = patience_s;
        self->restarts = restarts;
        self->nodes = self->offer.nodes = nodes;
        strcpy(self->name, name);
        bool fine = adli_worlds_want(&self->worlds, places, count) == ADL_OK;
        for (int i = 0; fine && i < count; i++)
            fine = adli_worlds_add(&self->worlds, ADLI_ROLE_IN, i, places[i]) != NULL;
        if (!fine) {
            Py_DECREF(self);
            self = (worlds_object *)PyErr_NoMemory();
        }
    }
    free(places);
    return (PyObject *)self;
}

static void worlds_free(PyObject *object)
{
    worlds_object *self = (worlds_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    adli_worlds_fini(&self->worlds);
    free(self->offer.members);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* ---- in ----------------------------------------------------------------------------------------- */

static PyObject *worlds_want(PyObject *object, PyObject *list)
{
    int count;
    int *places = read_places(list, &count);
    if (!places)
        return NULL;
    adl_status status = adli_worlds_want(&((worlds_object *)object)->worlds, places, count);
    free(places);
    return adlpy_none(status);
}

static PyObject *worlds_hear(PyObject *object, PyObject *args)
{
    worlds_object *self = (worlds_object *)object;
    int number;
    const char *line;
    double now_s;
    if (!PyArg_ParseTuple(args, "isd:hear", &number, &line, &now_s))
        return NULL;
    adli_member *from = adli_worlds_find(&self->worlds, number);
    return PyBool_FromLong(from && adli_worlds_hear(&self->worlds, from, line, now_s));
}

static PyObject *worlds_see(PyObject *object, PyObject *args)
{
    static const struct {
        const char *word;
        adli_gone gone;
    } ends[] = {{"killed", ADLI_GONE_KILLED},
                {"taken", ADLI_GONE_KILLED},
                {"left", ADLI_GONE_LEFT},
                {"ended", ADLI_GONE_ITSELF},
                {"unwanted", ADLI_GONE_ITSELF}};
    int number;
    const char *word;
    if (!PyArg_ParseTuple(args, "is:see", &number, &word))
        return NULL;
    adli_member *one = member_of((worlds_object *)object, number);
    if (!one)
        return NULL;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strcmp(ends[i].word, word) == 0) {
            one->gone = ends[i].gone;
            one->taken = strcmp(word, "taken") == 0;
            one->unwanted |= strcmp(word, "unwanted") == 0;
            return adlpy_ref(Py_None);
        }
    return PyErr_Format(PyExc_ValueError, "see: \"%s\" is no end of a process", word);
}

static PyObject *worlds_refuse(PyObject *object, PyObject *args)
{
    const char *why;
    if (!PyArg_ParseTuple(args, "s:refuse", &why))
        return NULL;
    adli_worlds_refuse(&((worlds_object *)object)->worlds, why);
    return adlpy_ref(Py_None);
}

/* The group is being stopped: nothing is done about sizes and deaths any more. */
static PyObject *worlds_stop(PyObject *object, PyObject *unused)
{
    (void)unused;
    worlds_object *self = (worlds_object *)object;
    self->worlds.running = false;
    self->worlds.stopping = true;
    return adlpy_ref(Py_None);
}

/* A checkpoint, soon, while they go on. */
static PyObject *worlds_save(PyObject *object, PyObject *unused)
{
    (void)unused;
    ((worlds_object *)object)->saves++;
    return adlpy_ref(Py_None);
}

/* ---- what replicas are told --------------------------------------------------------------------- */

static adl_status publish(worlds_object *self)
{
    const adli_worlds *worlds = &self->worlds;
    bool open = adli_worlds_on_offer(worlds);
    int *members = adli_calloc(worlds->count + 1, sizeof *members);
    if (!members)
        return adli_fail_memory("a world");
    int count = 0;
    for (int i = 0; open && i < worlds->next_count; i++)
        members[count++] = worlds->next[i];
    for (size_t i = 0; !open && i < worlds->count; i++)
        if (worlds->all[i]->role == ADLI_ROLE_IN)
            members[count++] = worlds->all[i]->number;
    free(self->offer.members);
    self->offer = (offer){worlds->last, worlds->dropped, open, self->nodes, members, count};
    return ADL_OK;
}

static PyObject *worlds_meet(PyObject *object, PyObject *args)
{
    worlds_object *self = (worlds_object *)object;
    adli_worlds *worlds = &self->worlds;
    const char *address;
    int port, nodes;
    if (!PyArg_ParseTuple(args, "sii:meet", &address, &port, &nodes))
        return NULL;
    if (!worlds->opened)
        return adlpy_ref(Py_None); /* it was taken back meanwhile */
    if (strlen(address) >= sizeof worlds->address || port < 1 || port > 65535 || nodes < 1)
        return PyErr_Format(PyExc_ValueError, "meet: %.80s:%d, %d nodes", address, port, nodes);
    strcpy(worlds->address, address);
    worlds->port = port;
    worlds->opened = false;
    self->nodes = nodes;
    return adlpy_none(publish(self));
}

static PyObject *worlds_offer(PyObject *object, PyObject *args)
{
    worlds_object *self = (worlds_object *)object;
    const offer *told = &self->offer;
    unsigned after, dropped, saves = UINT_MAX; /* not said: of no interest to who asks */
    const char *name;
    if (!PyArg_ParseTuple(args, "IIs|I:offer", &after, &dropped, &name, &saves))
        return NULL;
    if (told->generation <= after && told->dropped <= dropped && self->saves <= saves &&
        strcmp(name, self->name) == 0)
        return adlpy_ref(Py_None);
    adli_buf out;
    adli_buf_init(&out, OFFER_MAX);
    adli_jw_open(&out, NULL, '{');
    adli_jw_text(&out, "scheduler", self->name);
    adli_jw_int(&out, "restarts", self->restarts);
    adli_jw_int(&out, "generation", told->generation);
    adli_jw_int(&out, "dropped", told->dropped);
    adli_jw_int(&out, "saves", self->saves);
    adli_jw_bool(&out, "open", told->open);
    adli_jw_int(&out, "nodes", told->nodes);
    adli_jw_text(&out, "address", self->worlds.address);
    adli_jw_int(&out, "port", self->worlds.port);
    adli_jw_open(&out, "members", '[');
    for (int i = 0; i < told->count; i++)
        adli_jw_int(&out, NULL, told->members[i]);
    adli_jw_close(&out, ']');
    adli_jw_close(&out, '}');
    adl_status status = adli_buf_check(&out);
    PyObject *text = status == ADL_OK ? PyUnicode_FromString(out.data) : adlpy_raise(status);
    adli_buf_fini(&out);
    return text;
}

/* ---- out ---------------------------------------------------------------------------------------- */

static bool list_todo(worlds_object *self, PyObject *start, PyObject *end)
{
    const adli_worlds *worlds = &self->worlds;
    bool fine = true;
    for (size_t i = 0; fine && i < worlds->count; i++) {
        adli_member *one = worlds->all[i];
        if (one->start) {
            int last = worlds->wanted_count - 1, rank = one->rank < last ? one->rank : last;
            fine = append(start, Py_BuildValue("(iii)", one->number, rank, one->node));
            one->start = false;
        } else if (one->kill && one->gone == ADLI_GONE_NOT && !one->user) {
            fine = append(end, PyLong_FromLong(one->number));
            one->user = self; /* once is enough */
        }
    }
    return fine;
}

static bool list_notes(worlds_object *self, PyObject *notes)
{
    static const char *const words[] = {
        [ADLI_NEWS_RESIZED] = "resized", [ADLI_NEWS_WENT_ON] = "went on",
        [ADLI_NEWS_DIED] = "died",       [ADLI_NEWS_NEW_DIED] = "new died",
        [ADLI_NEWS_GAVE_UP] = "gave up", [ADLI_NEWS_KILLED] = "killed",
        [ADLI_NEWS_RESTART] = "restart",
    };
    adli_worlds *worlds = &self->worlds;
    bool fine = true;
    for (size_t i = 0; fine && i < worlds->note_count; i++) {
        const adli_world_note *note = &worlds->notes[i];
        fine = append(notes, Py_BuildValue("(sids)", words[note->news],
                                           note->member ? note->member->number : -1, note->seconds,
                                           note->text));
    }
    worlds->note_count = 0;
    return fine;
}

/* The members of the world that needs a place to meet, by rank; else empty. */
static bool list_opened(const worlds_object *self, PyObject *opened)
{
    bool fine = true;
    for (int i = 0; fine && self->worlds.opened && i < self->worlds.next_count; i++)
        fine = append(opened, PyLong_FromLong(self->worlds.next[i]));
    return fine;
}

static PyObject *worlds_act(PyObject *object, PyObject *args)
{
    worlds_object *self = (worlds_object *)object;
    double now_s;
    if (!PyArg_ParseTuple(args, "d:act", &now_s))
        return NULL;
    adli_worlds_act(&self->worlds, now_s);
    self->worlds.withdrawn = false;
    self->worlds.deaths = 0;
    adl_status status = self->worlds.opened ? ADL_OK : publish(self);
    if (status != ADL_OK)
        return adlpy_raise(status);
    PyObject *lists[4] = {PyList_New(0), PyList_New(0), PyList_New(0), PyList_New(0)};
    PyObject *result = NULL;
    if (lists[0] && lists[1] && lists[2] && lists[3] && list_todo(self, lists[0], lists[1]) &&
        list_opened(self, lists[2]) && list_notes(self, lists[3]))
        result = Py_BuildValue("(OOOO)", lists[0], lists[1], lists[2], lists[3]);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(lists[i]);
    return result;
}

static PyObject *worlds_handles(PyObject *object, PyObject *args)
{
    worlds_object *self = (worlds_object *)object;
    int number;
    if (!PyArg_ParseTuple(args, "i:handles", &number))
        return NULL;
    const adli_member *one = member_of(self, number);
    return one ? PyBool_FromLong(adli_worlds_handles(&self->worlds, one)) : NULL;
}

/* In the present world, by rank: (number, place). */
static PyObject *worlds_members(PyObject *object, void *unused)
{
    (void)unused;
    const adli_worlds *worlds = &((worlds_object *)object)->worlds;
    PyObject *list = PyList_New(0);
    bool fine = list != NULL;
    for (size_t i = 0; fine && i < worlds->count; i++)
        if (worlds->all[i]->role == ADLI_ROLE_IN)
            fine =
                append(list, Py_BuildValue("(ii)", worlds->all[i]->number, worlds->all[i]->node));
    if (!fine)
        Py_CLEAR(list);
    return list;
}

enum { ABLE, SETTLED, BROKEN, REFUSED, RESTART };

static PyObject *worlds_get(PyObject *object, void *which)
{
    const adli_worlds *worlds = &((worlds_object *)object)->worlds;
    switch ((intptr_t)which) {
    case ABLE:
        return PyBool_FromLong(adli_worlds_able(worlds) && !worlds->refused);
    case SETTLED:
        return PyBool_FromLong(adli_worlds_settled(worlds) && !adli_worlds_on_offer(worlds) &&
                               !worlds->broken);
    case BROKEN:
        return PyBool_FromLong(worlds->broken);
    case REFUSED:
        return PyBool_FromLong(worlds->refused);
    default:
        return PyBool_FromLong(adli_worlds_restart(worlds));
    }
}

static PyMethodDef methods[] = {
    {"want", worlds_want, METH_O, "want(places, /)\n--\n\nWhere its processes should be."},
    {"hear", worlds_hear, METH_VARARGS,
     "hear(member, line, now, /)\n--\n\nWhat a member says; False: not understood, or nobody."},
    {"see", worlds_see, METH_VARARGS,
     "see(member, end, /)\n--\n\nA process is gone: \"killed\", \"taken\" with its machine, "
     "\"left\" (143), \"ended\" by itself, or \"unwanted\": it was never started."},
    {"refuse", worlds_refuse, METH_VARARGS, "refuse(why, /)\n--\n\nNothing in place any more."},
    {"stop", worlds_stop, METH_NOARGS, "stop()\n--\n\nThe group is being stopped."},
    {"save", worlds_save, METH_NOARGS,
     "save()\n--\n\nAsks for a checkpoint, soon, while they go on."},
    {"act", worlds_act, METH_VARARGS,
     "act(now, /)\n--\n\n(start, end, opened, notes): (member, rank, place) of those to be "
     "started; members to be ended; members, by rank, of a world that waits for meet(); (word, "
     "member, seconds, text) for people."},
    {"meet", worlds_meet, METH_VARARGS,
     "meet(address, port, nodes, /)\n--\n\nWhere rank 0 of the world that was opened listens."},
    {"offer", worlds_offer, METH_VARARGS,
     "offer(after, dropped, name, saves=4294967295, /)\n--\n\nWhat GET /world answers; None: "
     "nothing new."},
    {"handles", worlds_handles, METH_VARARGS,
     "handles(member, /)\n--\n\nIs its end one that the others survive, or expected?"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"members", worlds_members, NULL, "(number, place) of the present world, by rank.", NULL},
    {"able", worlds_get, NULL, "Can it change its size while it runs?", (void *)ABLE},
    {"settled", worlds_get, NULL, "Is it where it should be?", (void *)SETTLED},
    {"broken", worlds_get, NULL, "Has it lost a member that the others wait about?",
     (void *)BROKEN},
    {"refused", worlds_get, NULL, "Is nothing done in place any more?", (void *)REFUSED},
    {"restart", worlds_get, NULL, "Must it be stopped to get where it should be?", (void *)RESTART},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, (void *)worlds_new},
    {Py_tp_dealloc, (void *)worlds_free},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {Py_tp_doc, "Worlds(name, restarts, places, nodes)\n--\n\nA group of processes that changes "
                "while it runs; at first one at each place, on so many nodes."},
    {0, NULL},
};

static PyType_Spec spec = {.name = "adaptdl._core.Worlds",
                           .basicsize = sizeof(worlds_object),
                           .flags = Py_TPFLAGS_DEFAULT,
                           .slots = slots};

int adlpy_worlds_setup(PyObject *module)
{
    return adlpy_add_type(module, "Worlds", &spec, &worlds_type);
}
