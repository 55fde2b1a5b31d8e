"""Views of the jobs for people: the web page and the terminal."""
