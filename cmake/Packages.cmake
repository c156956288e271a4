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
pkg_check_modules(libarchive REQUIRED IMPORTED_TARGET libarchive)
find_package(ZLIB REQUIRED)
