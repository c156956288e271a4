#include "core.h"
int adlpy_group_setup(PyObject *module) { (void)module; return 0; }
int adlpy_goodput_setup(PyObject *module) { (void)module; return 0; }
int adlpy_value_setup(PyObject *module) { (void)module; return 0; }
