/* The ADAPTDL_* variables as Python sees them. Once the process group exists its own values are given,
 * so that arguments of initialize count and a variable that is changed later does not. */
#include "core.h"

#include "train/context.h"

/* Paths and names may be any bytes; Python's own rule for those is the file system's encoding. */
static int put_text(PyObject *dict, const char *key, const char *text)
{
    PyObject *value = text ? PyUnicode_DecodeFSDefault(text) : adlpy_ref(Py_None);
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

static int put_number(PyObject *dict, const char *key, int number)
{
    PyObject *value = PyLong_FromLong(number);
    int result = value ? PyDict_SetItemString(dict, key, value) : -1;
    Py_XDECREF(value);
    return result;
}

/* Those of the process group, as they are now; else the variables. */
static bool look(adl_env *env, unsigned *generation)
{
    if (adlpy_context_env(env, generation))
        return true;
    adl_status status = adli_env_load(env);
    if (status != ADL_OK) {
        adlpy_raise(status);
        return false;
    }
    *generation = 0;
    if (env->nodes == 0)
        env->nodes = env->replicas;
    return true;
}

static PyObject *env_read(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_env env;
    unsigned generation;
    if (!look(&env, &generation))
        return NULL;
    PyObject *dict = PyDict_New();
    if (dict && put_text(dict, "checkpoint_path", env.checkpoint_path) == 0 &&
        put_text(dict, "share_path", env.share_path) == 0 &&
        put_text(dict, "job_id", env.job_id) == 0 &&
        put_text(dict, "master_addr", env.master_addr) == 0 &&
        put_number(dict, "master_port", env.master_port) == 0 &&
        put_number(dict, "replica_rank", env.rank) == 0 &&
        put_number(dict, "num_replicas", env.replicas) == 0 &&
        put_number(dict, "num_nodes", env.nodes) == 0 &&
        put_number(dict, "num_restarts", env.restarts) == 0 &&
        put_number(dict, "local_rank", env.local_rank) == 0 &&
        put_text(dict, "supervisor_url", env.supervisor_url) == 0 &&
        put_text(dict, "sched_version", env.sched_version) == 0 &&
        put_text(dict, "tensorboard_logdir", env.tensorboard_logdir) == 0)
        return dict;
    Py_XDECREF(dict);
    return NULL;
}

/* Asked at every use: replicas come and go. */
static PyObject *world(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    adl_env env;
    unsigned generation;
    return look(&env, &generation) ? Py_BuildValue("(iiI)", env.rank, env.replicas, generation)
                                   : NULL;
}

static PyMethodDef functions[] = {
    {"world", world, METH_NOARGS,
     "world()\n--\n\n(rank, replicas, generation) of the replicas that train together at present."},
    {"env", env_read, METH_NOARGS,
     "env()\n--\n\nThe ADAPTDL_* variables, checked, as a dict; those of the process group when "
     "there "
     "is one."},
    {NULL, NULL, 0, NULL},
};

int adlpy_env_setup(PyObject *module)
{
    return adlpy_add_functions(module, functions);
}
