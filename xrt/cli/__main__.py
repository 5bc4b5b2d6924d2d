from xrt.cli import main

main()
