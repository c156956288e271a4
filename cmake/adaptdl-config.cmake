# find_package(adaptdl): the targets adaptdl::adaptdl (models, policies, training) and adaptdl::adaptdl-nn
# (layers, optimizers and data sets on oneDNN).
include(${CMAKE_CURRENT_LIST_DIR}/adaptdl-targets.cmake)
