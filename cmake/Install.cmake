# What `make install` installs: programs, headers, libraries, their descriptions for pkg-config and CMake, the
# manual page and the completions. The tree can be moved: nothing in it names the prefix.
include(CMakePackageConfigHelpers)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/adaptdl)

install(TARGETS adaptdl-cli adaptdl-sched adaptdl-keeper DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/adaptdl DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS adaptdl adaptdl-nn EXPORT adaptdl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS adaptdl-static adaptdl-nn-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT adaptdl NAMESPACE adaptdl:: FILE adaptdl-targets.cmake DESTINATION ${package})

set(share ${CMAKE_BINARY_DIR}/share)
install(FILES ${share}/man/man1/adaptdl.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${share}/completion/adaptdl.bash RENAME adaptdl
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${share}/completion/_adaptdl DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
install(FILES ${share}/completion/adaptdl.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

file(RELATIVE_PATH up /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/adaptdl.pc.in ${CMAKE_BINARY_DIR}/adaptdl.pc @ONLY)
configure_file(cmake/adaptdl-nn.pc.in ${CMAKE_BINARY_DIR}/adaptdl-nn.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/adaptdl.pc ${CMAKE_BINARY_DIR}/adaptdl-nn.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/adaptdl-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES cmake/adaptdl-config.cmake ${CMAKE_BINARY_DIR}/adaptdl-config-version.cmake
        DESTINATION ${package})
