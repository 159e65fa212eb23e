"""The screens of the program, each beside its stylesheet."""
