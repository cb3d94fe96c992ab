"""The half of a deployment that runs on the device, sent there as text. The modules need only the standard library.

FOLDER/releases/DIGEST/    bundle/, serve (a program), release.json; `confirmed` after it was checked and activated
FOLDER/software/DIGEST/    a virtual environment, or the unpacked wheel; `installed` after it is complete
FOLDER/packages/           wheels to be installed
FOLDER/current             link to the release that serves
FOLDER/token, service.log, service.pid
"""
