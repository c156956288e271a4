# adl_module(NAME [INTERNAL] [DEPS module...] [LIBS target...]): the folder src/NAME as a static
# library adl_NAME. Modules that are not INTERNAL become part of libadaptdl.
function(adl_module name)
  cmake_parse_arguments(arg "INTERNAL" "" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c)
  add_library(adl_${name} STATIC ${sources})
  target_include_directories(adl_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                                                ${CMAKE_BINARY_DIR}/generated)
  foreach(dep ${arg_DEPS})
    target_link_libraries(adl_${name} PUBLIC adl_${dep})
  endforeach()
  target_link_libraries(adl_${name} PUBLIC ${arg_LIBS})
  set_property(GLOBAL APPEND PROPERTY ADL_ALL_MODULES adl_${name})
  if(NOT arg_INTERNAL)
    set_property(GLOBAL APPEND PROPERTY ADL_LIBRARY_MODULES adl_${name})
    set_property(GLOBAL APPEND PROPERTY ADL_LIBRARY_LIBS ${arg_LIBS})
  endif()
endfunction()

# libadaptdl.so: the objects of every public module, exporting only what ADL_API marks.
function(adl_library)
  get_property(parts GLOBAL PROPERTY ADL_LIBRARY_MODULES)
  get_property(libs GLOBAL PROPERTY ADL_LIBRARY_LIBS)
  add_library(adaptdl SHARED)
  set_target_properties(adaptdl PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_include_directories(adaptdl PUBLIC ${CMAKE_SOURCE_DIR}/include)
  foreach(part ${parts})
    target_sources(adaptdl PRIVATE $<TARGET_OBJECTS:${part}>)
  endforeach()
  target_link_libraries(adaptdl PRIVATE ${libs})
  # Hidden visibility leaves out what the compiler makes for target_clones.
  target_link_options(adaptdl PRIVATE "LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/exports.map")
  set_target_properties(adaptdl PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/exports.map)
endfunction()
