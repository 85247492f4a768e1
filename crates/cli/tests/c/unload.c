/*
 * A program that uses the libraries only through a plug-in, which it loads and unloads repeatedly.
 *
 *   unload PLUGIN ADDRESS PORT
 */
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#define TIMES 4

int main(int argc, char **argv)
{
	for (int i = 0; argc == 4 && i < TIMES; i++) {
		void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		int (*use)(const char *, const char *, int);

		if (!plugin) {
			fprintf(stderr, "%s\n", dlerror());
			return 1;
		}
		*(void **)&use = dlsym(plugin, "use");
		/* The last time everything is left as it is. */
		if (!use || use(argv[2], argv[3], i == TIMES - 1))
			return 1;
		if (dlclose(plugin))
			return 1;
		/* Time for leftover threads to run. */
		usleep(100000);
	}
	if (argc != 4)
		return 2;
	printf("unloaded %d times\n", TIMES);
	return 0;
}
