"""Views of the jobs for users: the web page and the terminal."""
