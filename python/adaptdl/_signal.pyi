__all__: list[str]

EXIT_FLAG: bool

def get_exit_flag() -> bool: ...
