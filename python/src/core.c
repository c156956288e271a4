/* The module adaptdl._core: what the Python files of the package adapt. One module, one process-wide
 * context; single-phase initialisation, because the library underneath has process-wide state too. */
#include "core.h"

#include <stdio.h>

/* See setup.py: what jansson sees instead of stdin. */
FILE *__wrap_stdin __attribute__((visibility("hidden")));

int adlpy_add_functions(PyObject *module, PyMethodDef *functions)
{
    return PyModule_AddFunctions(module, functions);
}

int adlpy_add_type(PyObject *module, const char *name, PyType_Spec *spec, PyObject **type)
{
    *type = PyType_FromSpec(spec);
    if (!*type)
        return -1;
    Py_INCREF(*type); /* one for the module, one for the caller */
    if (PyModule_AddObject(module, name, *type) == 0)
        return 0;
    Py_DECREF(*type);
    Py_CLEAR(*type);
    return -1;
}

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "adaptdl._core",
    .m_doc = "The C library behind the package. Internal: use the modules of adaptdl.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__core(void)
{
    static int (*const parts[])(PyObject *) = {
        adlpy_context_setup, adlpy_env_setup,    adlpy_states_setup, adlpy_group_setup,
        adlpy_goodput_setup, adlpy_hints_setup,  adlpy_value_setup,  adlpy_metrics_setup,
        adlpy_policy_setup,  adlpy_report_setup, adlpy_worlds_setup,
    };
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    bool fine = PyModule_AddStringConstant(module, "version", adl_version()) == 0 &&
                PyModule_AddStringConstant(module, "compiler", __VERSION__) == 0;
    for (size_t i = 0; fine && i < sizeof parts / sizeof *parts; i++)
        fine = parts[i](module) == 0;
    if (fine && adlpy_torch_setup)
        fine = adlpy_torch_setup(module) == 0;
    if (fine)
        return module;
    Py_DECREF(module);
    return NULL;
}
