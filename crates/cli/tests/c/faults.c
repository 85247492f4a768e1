/* Faults that valgrind must find: `faults invalid` and `faults lost`; without an argument none. */
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	char *volatile memory = malloc(8);
	int faulty = 0;

	if (argc != 2 || !memory)
		return 2;
	memset(memory, 0, 8);
	if (!strcmp(argv[1], "invalid"))
		faulty = ((volatile char *)memory)[8] == 'x';
	if (strcmp(argv[1], "lost"))
		free(memory);
	memory = NULL;
	return faulty;
}
