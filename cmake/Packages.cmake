# The third-party libraries (docs/adr says why each one is here). All are Debian packages, installed
# by tools/setup.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(jansson REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(yaml REQUIRED IMPORTED_TARGET yaml-0.1)
pkg_check_modules(qhull REQUIRED IMPORTED_TARGET qhull_r)
pkg_check_modules(libcurl REQUIRED IMPORTED_TARGET libcurl>=7.85)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(libcrypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(libssl REQUIRED IMPORTED_TARGET libssl>=3)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3>=3.35)
pkg_check_modules(microhttpd REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.75)
pkg_check_modules(libarchive REQUIRED IMPORTED_TARGET libarchive)
find_package(ZLIB REQUIRED)

# The programs in the Python package (docs/adr/0201). Debian's libarchive brings libxml2 along, and that 30 MB of
# ICU; its archive gives just the tar that we use. RPATH and not RUNPATH, since libraries of libraries are to be
# found there too.
if(ADL_BUNDLE)
  set_target_properties(PkgConfig::libarchive PROPERTIES INTERFACE_LINK_LIBRARIES "-l:libarchive.a;nettle")
  set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib")
  add_link_options("LINKER:--as-needed" "LINKER:--gc-sections" "LINKER:--disable-new-dtags" -s)
endif()
