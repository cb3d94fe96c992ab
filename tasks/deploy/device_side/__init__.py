"""The half of a deployment that runs on the device, sent there as text. Each module needs the standard library only.

FOLDER/releases/DIGEST/    bundle/, serve (a program), release.json; confirmed, once it was checked and served
FOLDER/software/DIGEST/    a virtual environment, or the unpacked wheel; installed, once it is complete
FOLDER/packages/           wheels that are to be installed
FOLDER/current             link to the release that serves
FOLDER/token, service.log, service.pid
"""
