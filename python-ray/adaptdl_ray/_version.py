"""The package's version: that of the repository it is built from."""

VERSION = "0.1.0"
