package baton.jinja;

import baton.jinja.Value.Bool;
import baton.jinja.Value.Int;
import baton.jinja.Value.Real;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.math.MathContext;
import java.math.RoundingMode;
import org.jspecify.annotations.Nullable;

/** Python's arithmetic with integers, floats and truth values; integers are bounded to {@value #MAX_BITS} bits. */
record Numbers(RenderBudget budget) {
    private static final int MAX_BITS = 4096;

    static boolean isNumber(Value value) {
        return value instanceof Value.Numeric;
    }

    /** Whether two values are numbers that are one key of a dictionary. */
    @SuppressWarnings("ReferenceEquality") // as a key, NaN equals itself, as in Python
    static boolean sameKey(Value.Numeric number, @Nullable Object other) {
        return number == other || (other instanceof Value.Numeric otherNumber && compare(number, otherNumber) == 0);
    }

    static boolean isNan(Value value) {
        return value instanceof Real(double number) && Double.isNaN(number);
    }

    /** Less than, equal to or greater than 0, exactly; greater if one is not a number. */
    static int compare(Value.Numeric left, Value.Numeric right) {
        if (left instanceof Real(double first)) {
            if (right instanceof Real(double second)) {
                return first < second ? -1 : first == second ? 0 : 1;
            }
            if (Double.isNaN(first)) {
                return 1;
            }
            return Double.isInfinite(first)
                    ? (int) Math.signum(first)
                    : new BigDecimal(first).compareTo(new BigDecimal(whole(right)));
        }
        return right instanceof Real
                ? (isNan(right) ? 1 : -compare(right, left))
                : whole(left).compareTo(whole(right));
    }

    private static BigInteger whole(Value.Numeric number) {
        return switch (number) {
            case Int(BigInteger value) -> value;
            case Bool(boolean value) -> value ? BigInteger.ONE : BigInteger.ZERO;
            case Real(double value) -> throw new IllegalArgumentException("number=" + value);
        };
    }

    /** @throws JinjaException if it is no number, or a larger one than floats are */
    double toDouble(Value number) {
        if (number instanceof Real(double value)) {
            return value;
        }
        return finite(toInteger(number).doubleValue(), "integer");
    }

    private double finite(double result, String what) {
        if (Double.isInfinite(result)) {
            throw budget.error(what + " is too large for a float");
        }
        return result;
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
        if (operator == Ast.BinaryOperator.DIVIDE && !(left instanceof Real) && !(right instanceof Real)) {
            return new Real(quotient(toInteger(left), toInteger(right)));
        }
        return left instanceof Real || right instanceof Real
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
                    case FLOOR_DIVIDE -> floorQuotient(left, nonZero(right));
                    case MODULO -> {
                        double rest = left % nonZero(right);
                        yield rest == 0 ? Math.copySign(0, right) : (rest < 0) != (right < 0) ? rest + right : rest;
                    }
                    case POWER -> power(left, right);
                    case AND, OR -> throw new IllegalArgumentException("operator=" + operator);
                });
    }

    private static double floorQuotient(double left, double right) {
        double rest = left % right;
        double quotient = (left - rest) / right;
        if (rest != 0 && (rest < 0) != (right < 0)) {
            quotient--;
        }
        double floor = Math.floor(quotient);
        return quotient == 0 ? Math.copySign(0, left / right) : quotient - floor > 0.5 ? floor + 1 : floor;
    }

    private double power(double left, double right) {
        if (left == 0 && right < 0) {
            throw budget.error("0.0 cannot be raised to a negative power");
        }
        if (left == 1 || (left == -1 && Double.isInfinite(right))) {
            return 1;
        }
        double result = Math.pow(left, right);
        if (Double.isNaN(result) && !Double.isNaN(left) && !Double.isNaN(right)) {
            throw budget.error("a negative number to a fractional power is no real number");
        }
        return Double.isInfinite(left) || Double.isInfinite(right) ? result : finite(result, "power");
    }

    /** The float next to the exact quotient. */
    private double quotient(BigInteger left, BigInteger right) {
        if (right.signum() == 0) {
            throw budget.error("division by zero");
        }
        if (left.bitLength() <= 53 && right.bitLength() <= 53) {
            return left.doubleValue() / right.doubleValue();
        }
        return finite(
                new BigDecimal(left)
                        .divide(new BigDecimal(right), new MathContext(60, RoundingMode.HALF_EVEN))
                        .doubleValue(),
                "quotient");
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
                return floats(operator, toDouble(new Int(left)), toDouble(new Int(right)));
            }
            if (left.abs().bitLength() <= 1) {
                return new Int(left.signum() < 0 && !right.testBit(0) ? BigInteger.ONE : left.pow(right.signum()));
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
        return new Int(limited(result));
    }

    /** The number itself. @throws JinjaException if it is larger than any may be */
    BigInteger limited(BigInteger number) {
        if (number.bitLength() > MAX_BITS) {
            throw budget.error("number of more than " + MAX_BITS + " bits");
        }
        return number;
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
