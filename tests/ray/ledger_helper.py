WORD = "beside"  # a module beside the program: it must be sent along
