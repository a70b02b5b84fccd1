syntax error here(
