package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Int;
import baton.jinja.Value.Real;
import java.math.BigInteger;

/** Python's arithmetic with integers, floats and truth values; integers are bounded to {@value #MAX_BITS} bits. */
final class Numbers {
    private static final int MAX_BITS = 4096;

    private final Budget budget;

    Numbers(Budget budget) {
        this.budget = budget;
    }

    static boolean isNumber(Value value) {
        return value instanceof Int || value instanceof Real || value instanceof Bool;
    }

    /** Less than, equal to or greater than 0, as Python orders numbers and truth values. */
    int compare(Value left, Value right) {
        if (left instanceof Real || right instanceof Real) {
            double first = toDouble(left);
            double second = toDouble(right);
            return first < second ? -1 : first == second ? 0 : 1;
        }
        return toInteger(left).compareTo(toInteger(right));
    }

    double toDouble(Value number) {
        return number instanceof Real(double value) ? value : toInteger(number).doubleValue();
    }

    /** @throws JinjaException if it is neither a whole number nor a truth value */
    BigInteger toInteger(Value number) {
        return switch (number) {
            case Int(BigInteger value) -> value;
            case Bool(boolean value) -> value ? BigInteger.ONE : BigInteger.ZERO;
            default -> throw budget.error(number, "a whole number is needed, not " + Python.typeName(number));
        };
    }

    /** Applies an arithmetic operator to two numbers. */
    Value binary(Ast.BinaryOperator operator, Value left, Value right) {
        return left instanceof Real || right instanceof Real || operator == Ast.BinaryOperator.DIVIDE
                ? floats(operator, toDouble(left), toDouble(right))
                : integers(operator, toInteger(left), toInteger(right));
    }

    private Value floats(Ast.BinaryOperator operator, double left, double right) {
        return new Real(
                switch (operator) {
                    case ADD -> left + right;
                    case SUBTRACT -> left - right;
                    case MULTIPLY -> left * right;
                    case DIVIDE -> left / nonZero(right);
                    case FLOOR_DIVIDE -> Math.floor(left / nonZero(right));
                    case MODULO -> {
                        double rest = left % nonZero(right);
                        yield rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
                    }
                    case POWER -> Math.pow(left, right);
                    case AND, OR -> throw new IllegalArgumentException("operator=" + operator);
                });
    }

    private double nonZero(double divisor) {
        if (divisor == 0) {
            throw budget.error("division by zero");
        }
        return divisor;
    }

    private Value integers(Ast.BinaryOperator operator, BigInteger left, BigInteger right) {
        if ((operator == Ast.BinaryOperator.FLOOR_DIVIDE || operator == Ast.BinaryOperator.MODULO)
                && right.signum() == 0) {
            throw budget.error("division by zero");
        }
        if (operator == Ast.BinaryOperator.POWER) {
            if (right.signum() < 0) {
                return floats(operator, left.doubleValue(), right.doubleValue());
            }
            if (right.bitLength() > 31 || (long) left.bitLength() * right.intValue() > MAX_BITS) {
                throw budget.error("number of more than " + MAX_BITS + " bits");
            }
        }
        BigInteger result = switch (operator) {
            case ADD -> left.add(right);
            case SUBTRACT -> left.subtract(right);
            case MULTIPLY -> left.multiply(right);
            case FLOOR_DIVIDE -> left.subtract(floorModulo(left, right)).divide(right);
            case MODULO -> floorModulo(left, right);
            case POWER -> left.pow(right.intValue());
            case DIVIDE, AND, OR -> throw new IllegalArgumentException("operator=" + operator);
        };
        if (result.bitLength() > MAX_BITS) {
            throw budget.error("number of more than " + MAX_BITS + " bits");
        }
        return new Int(result);
    }

    private static BigInteger floorModulo(BigInteger left, BigInteger right) {
        BigInteger rest = left.remainder(right);
        return rest.signum() != 0 && rest.signum() != right.signum() ? rest.add(right) : rest;
    }

    Value minus(Value value) {
        return value instanceof Real(double number)
                ? new Real(-number)
                : new Int(toInteger(value).negate());
    }

    Value plus(Value value) {
        return value instanceof Real ? value : new Int(toInteger(value));
    }
}
