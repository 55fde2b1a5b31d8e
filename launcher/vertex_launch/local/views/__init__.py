"""Shows jobs to users on the web page and in the terminal."""
