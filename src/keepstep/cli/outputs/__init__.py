"""`keepstep outputs`: its commands, one file each."""
