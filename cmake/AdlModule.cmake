# adl_module(NAME [INTERNAL | LIBRARY library] [DEPS module...] [LIBS target...]): the folder src/NAME as a
# static library adl_NAME. Unless INTERNAL it also becomes part of a public library: libadaptdl, or the one
# that LIBRARY names.
function(adl_module name)
  cmake_parse_arguments(arg "INTERNAL" "LIBRARY" "DEPS;LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.c ${CMAKE_CURRENT_SOURCE_DIR}/*/*.c)
  add_library(adl_${name} STATIC ${sources})
  target_include_directories(adl_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src
                                                ${CMAKE_BINARY_DIR}/generated)
  foreach(dep ${arg_DEPS})
    target_link_libraries(adl_${name} PUBLIC adl_${dep})
  endforeach()
  target_link_libraries(adl_${name} PUBLIC ${arg_LIBS})
  set_property(GLOBAL APPEND PROPERTY ADL_ALL_MODULES adl_${name})
  if(NOT arg_INTERNAL)
    if(NOT arg_LIBRARY)
      set(arg_LIBRARY adaptdl)
    endif()
    set_property(GLOBAL APPEND PROPERTY ADL_MODULES_OF_${arg_LIBRARY} adl_${name})
    set_property(GLOBAL APPEND PROPERTY ADL_LIBS_OF_${arg_LIBRARY} ${arg_LIBS})
  endif()
endfunction()

# adl_library(NAME): the public library NAME, shared and static: the objects of its modules, exporting only
# what ADL_API marks.
function(adl_library name)
  get_property(parts GLOBAL PROPERTY ADL_MODULES_OF_${name})
  get_property(libs GLOBAL PROPERTY ADL_LIBS_OF_${name})
  list(TRANSFORM parts REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(${name} SHARED ${objects})
  add_library(${name}-static STATIC ${objects})
  set_target_properties(${name} ${name}-static PROPERTIES OUTPUT_NAME ${name} LINKER_LANGUAGE C)
  set_target_properties(${name} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                                           INSTALL_RPATH "$ORIGIN")
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
                                            $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${name} PRIVATE ${libs})
  # Hidden visibility leaves out what the compiler makes for target_clones.
  set(map ${CMAKE_SOURCE_DIR}/cmake/exports.map)
  target_link_options(${name} PRIVATE "LINKER:--version-script=${map}")
  set_target_properties(${name} PROPERTIES LINK_DEPENDS ${map})
  if(NOT ADL_SANITIZE AND NOT ADL_TSAN)
    target_link_options(${name} PRIVATE -Wl,--no-undefined)
  endif()
endfunction()
